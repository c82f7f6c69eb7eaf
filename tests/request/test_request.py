"""What users pass means the same in all public functions: which options there are, targets, threads and logs."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from factories import make_record

import tvm_sparse as ts
from tvm_sparse.autotune import session
from tvm_sparse.errors import UsageError
from tvm_sparse.logs.known_logs import user_log
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.request.options import CompileOptions, ModelOptions
from tvm_sparse.request.request import Request
from tvm_sparse.target.resolve import resolve_target

FUNCTIONS = (ts.compile, ts.optimize, ts.tune, ts.inspect, ts.bench, ts.check)
CPU = resolve_target()


class OnGpu(torch.nn.Conv2d):
    """A module that says its parameters are on the second GPU."""

    def parameters(self, recurse=True):
        return iter([SimpleNamespace(device=torch.device("cuda", 1))])


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_all_functions_share_their_options_and_take_them_by_name_only(function):
    parameters = inspect.signature(function).parameters
    by_place = [name for name, each in parameters.items() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert by_place == ["source", "example_inputs"]
    shared = ModelOptions if function is ts.tune else CompileOptions
    assert set(shared.__annotations__) <= set(parameters)
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got an unexpected keyword argument 'trget'"):
        function("missing.onnx", trget="cpu")
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) too many positional arguments"):
        function("missing.onnx", None, "cpu")


def test_optimize_takes_what_compile_takes():
    assert set(inspect.signature(ts.compile).parameters) <= set(inspect.signature(ts.optimize).parameters)


def test_no_log_is_all_known_ones_and_writes_the_users_own():
    record = make_record()
    for path in ("tuning.jsonl", "other.jsonl"):
        TuningLog(path).append(record)
    known = Request("m.onnx").opened
    assert known.path == user_log(CPU) and not known.path.exists()
    assert record in known.records and len(known.records) > 1
    assert (Request("m.onnx", log="other.jsonl").opened.records, Request("m.onnx", log="new.jsonl").opened.records) == (
        [record],
        [],
    )
    several = Request("m.onnx", log=["new.jsonl", "other.jsonl"]).opened
    assert (several.path.name, several.records) == ("new.jsonl", [record])
    assert len(Request("m.onnx", log="new.jsonl").with_known_logs().opened.records) == len(known.records)
    assert Request("m.onnx", log=several).with_known_logs().opened is several


def test_tune_without_a_log_writes_where_compile_reads(monkeypatch):
    model, x, record = torch.nn.Conv2d(4, 4, 1).eval(), torch.zeros(1, 4, 5, 5), make_record()
    monkeypatch.setattr(session, "tune_tasks", lambda _tasks, _target, log, *_: log.append(record))
    assert ts.tune(model, x, progress=False).path == user_log(CPU)
    assert record in Request(model, x).opened.records


def test_threads_are_of_a_cpu():
    target = {"kind": "llvm", "mcpu": "znver3"}
    for given in (target, resolve_target(target)):
        found = resolve_target(given, 3)
        assert (found.attrs["num-cores"], found.attrs["mcpu"]) == (3, "znver3")
    for threads in (0, True, 5000, "2"):
        with pytest.raises(UsageError, match="threads: is no number of threads"):
            Request("m.onnx", threads=threads).resolved  # noqa: B018
    with pytest.raises(UsageError, match="threads: they are of a CPU's kernels, found target cuda"):
        resolve_target({"kind": "cuda", "arch": "sm_90"}, 2)


def test_the_target_is_where_the_module_is():
    module = OnGpu(1, 1, 1)
    request = Request(module)
    assert (request.device_index, resolve_target("cuda:1").kind.name) == (1, "cuda")
    assert Request(module, target="cpu").resolved.kind.name == "llvm"
    assert Request(torch.nn.Conv2d(1, 1, 1)).resolved.kind.name == "llvm"
    assert Request(torch.nn.ReLU()).resolved.kind.name == "llvm"
    with pytest.raises(UsageError, match="unknown target kind, found cuda:first"):
        resolve_target("cuda:first")


def test_models_are_timed_on_the_first_gpu():
    for function in (ts.optimize, ts.bench):
        with pytest.raises(UsageError, match="found cuda:1; allowed: cuda:0; set CUDA_VISIBLE_DEVICES=1"):
            function("m.onnx", target="cuda:1")


def test_a_second_gpu_is_used_where_it_is_like_the_first(monkeypatch):
    gpus = [SimpleNamespace(exist=True, compute_version=version) for version in ("9.0", "9.0", "8.0")]
    missing = SimpleNamespace(exist=False)
    monkeypatch.setattr("tvm.cuda", lambda index: gpus[index] if index < len(gpus) else missing)
    target = {"kind": "cuda", "arch": "sm_90"}
    monkeypatch.setattr("tvm_sparse.request.request.resolve_target", lambda *_: resolve_target(target))
    assert Request("m.onnx", target="cuda:1").resolved.kind.name == "cuda"
    for name, sentence in (("cuda:2", "it is another kind of GPU than cuda:0"), ("cuda:3", "there is no such GPU")):
        with pytest.raises(UsageError, match=f"{sentence}.*found {name}"):
            Request("m.onnx", target=name).resolved  # noqa: B018
