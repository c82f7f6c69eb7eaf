"""CUDA kernels of a model: built apart and side by side, found again, and the model is the same however it got them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tvm
import zoo
from factories import make_record
from four_kernels import SCHEDULES, TARGET, built, decisions_of, imports, onnx_model, prepared_model
from torch import nn

from tvm_sparse.codegen import kernel_source
from tvm_sparse.codegen.cuda import nvcc
from tvm_sparse.codegen.kernel_cache import LIMIT, KernelCache
from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.compiler.building import build_pool, kernel_store, verify
from tvm_sparse.compiler.building.build_kernels import BuildProgress
from tvm_sparse.compiler.building.kernel_store import KernelRequest, KernelStore
from tvm_sparse.compiler.plan.choice import Default, Predicted, Recorded
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.conv import reference
from tvm_sparse.conv.nchwc import NCHW
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.files.user_folders import HOME
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.measure import worker_main
from tvm_sparse.measure.worker import Worker
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.resolve import resolve_target


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The folder of built kernels of this test."""
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    return tmp_path / "home" / "kernels"


@pytest.fixture(scope="module")
def prepared() -> PreparedModel:
    return prepared_model()


def library(compiled: CompiledModel, folder: Path) -> bytes:
    """The library of its artifact."""
    (path,) = artifact.save(compiled, folder).glob("*.so")
    return path.read_bytes()


@pytest.fixture
def lowered(monkeypatch) -> list[str]:
    """The schedules of the kernels that are lowered from now on, in this process."""
    true_lower, found = worker_main.lower, []

    def lower(request):
        found.append(request["schedule"])
        return true_lower(request)

    monkeypatch.setattr(worker_main, "lower", lower)
    return found


def test_what_was_built_is_found_and_makes_the_same_model(prepared, lowered, tmp_path):
    cold = library(built(prepared), tmp_path / "cold")
    assert sorted(lowered) == sorted(SCHEDULES)
    lowered.clear()
    compiled = built(prepared)
    assert lowered == []
    assert library(compiled, tmp_path / "hit") == cold
    for row, names in zip(compiled.report(), (1, 2, 1, 1), strict=True):
        assert len(row["kernels"]) == names and all(name.encode() in cold for name in row["kernels"])


def test_the_same_without_a_cache_and_by_worker_processes(prepared, lowered, tmp_path, monkeypatch, home):
    monkeypatch.setenv(LIMIT, "0")
    inline = library(built(prepared), tmp_path / "inline")
    assert len(lowered) == 4 and not home.exists()
    monkeypatch.setattr(build_pool, "WORKERS_S", 0)
    assert library(built(prepared), tmp_path / "workers") == inline
    assert len(lowered) == 4


def test_nothing_is_parsed_while_kernels_are_lowered(prepared, lowered, monkeypatch):
    """The module `ast` fails now and then in several threads of Python 3.11."""
    for name in ("parse", "literal_eval"):
        monkeypatch.setattr(ast, name, lambda *_, **__: pytest.fail("ast is used"))
    kernels_of(prepared)
    assert sorted(lowered) == sorted(SCHEDULES)


def test_a_kernel_of_nothing_but_an_input_is_no_reshape():
    """Relax looks for a reshape in each function of one input, and a folded convolution without a bias is one."""
    bare = prepare(zoo.Chain(nn.Conv2d(8, 8, 1, bias=False), nn.Sigmoid()), torch.zeros(1, 8, 8, 8))
    (decision,) = decide(bare.layers, TARGET, None)
    compiled = build_model.build(bare, [replace(decision, choice=Default("folded_cuda"))], TARGET)
    (row,) = compiled.report()
    assert row["schedule"] == "folded_cuda" and len(row["kernels"]) == 1


def test_layers_share_what_is_the_same(prepared):
    """Dense kernels take their weight as an argument: two layers, one code. Equal layers share all of it."""
    kernels = kernels_of(prepared)
    first, second = list(kernels.values())[2:]
    assert first is not second and first.module.same_as(second.module) and first.names == second.names
    assert len({kernel.names for kernel in kernels.values()}) == 3
    first = prepared.groups[0]
    twin = replace(prepared, groups=[first, replace(first, layer=replace(first.layer, name="twin"))])
    one, other = kernels_of(twin, ("folded_cuda", "folded_cuda")).values()
    assert one is other
    compiled = built(prepared)
    assert len(imports(compiled.executable.mod)) == 4, "three of kernels, and that of the pooling"


def kernels_of(prepared: PreparedModel, schedules=SCHEDULES):
    builder = build_plan.KernelBuilder(TARGET, KernelStore(KernelCache.of_user(), TARGET))
    return build_plan.kernels_of(prepared.layers, decisions_of(prepared, schedules), TARGET, builder.build)


def test_keys_differ_in_everything_that_a_kernel_is_made_from(prepared, monkeypatch):
    layer = prepared.layers[0]

    def key(target=TARGET, weight=layer.weight, schedule="folded_cuda", decisions=None, spec=layer.spec):
        request = KernelRequest(schedule, decisions, spec, weight, SparsityPattern.of(weight))
        return KernelStore(None, target).key(request)

    keys = [
        key(),
        key(resolve_target({"kind": "cuda", "arch": "sm_80"})),
        key(weight=layer.weight * 2),
        key(weight=np.where(layer.weight > 0, layer.weight, 0).astype(np.float32)),
        key(schedule="csr_cuda"),
        key(decisions={"filters": 1}),
        key(decisions={"filters": 2}),
        key(spec=replace(layer.spec, n=2)),
        key(spec=replace(layer.spec, relu=not layer.spec.relu)),
    ]
    monkeypatch.setattr(kernel_store, "toolchain", lambda: {"compiler": "nvcc", "version": "99"})
    keys.append(key())
    assert len(set(keys)) == len(keys)
    monkeypatch.undo()
    assert key() == keys[0]


def test_the_compiler_is_told_by_version_and_settings(monkeypatch):
    assert nvcc.toolchain() == {"compiler": "none"} or tvm.cuda(0).exist
    monkeypatch.setattr(nvcc, "is_compiled_here", lambda: True)
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    monkeypatch.setattr(nvcc, "_nvcc_version", lambda _path: "release 13.0")
    assert nvcc.toolchain() == {"compiler": "nvcc", "version": "release 13.0"}
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    assert nvcc.toolchain()["NVCC_APPEND_FLAGS"] == "-G"
    monkeypatch.delenv("NVCC_APPEND_FLAGS")
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvrtc")
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", SimpleNamespace(nvrtcVersion=lambda: (0, 13, 1)))
    assert nvcc.toolchain() == {"compiler": "nvrtc", "version": "13.1"}


def test_a_compiler_that_leaves_files_gets_one_source(prepared, lowered, monkeypatch, tmp_path):
    """All kernels in one module; nothing is looked up, as nothing would be left then."""
    built(prepared)
    lowered.clear()
    monkeypatch.setenv("TVM_KERNEL_DUMP", str(tmp_path))
    assert len(imports(built(prepared).executable.mod)) == 1 and lowered == []


def test_damage_is_repaired(prepared, lowered, tmp_path, home):
    """Whatever of the cache is cut, changed or gone."""
    cold = library(built(prepared), tmp_path / "cold")
    for number, path in enumerate(sorted(home.iterdir())):
        data = path.read_bytes()
        path.unlink()
        if number % 3:
            path.write_bytes(data[: len(data) // 2] if number % 3 == 1 else data[:-1] + bytes([data[-1] ^ 1]))
    lowered.clear()
    assert library(built(prepared), tmp_path / "repaired") == cold
    assert len(lowered) == 4
    lowered.clear()
    built(prepared)
    assert lowered == []


def test_files_with_each_other_s_names_are_not_believed(prepared, lowered, tmp_path, home):
    cold = library(built(prepared), tmp_path / "cold")
    names = sorted(path.name for path in home.iterdir())
    contents = [(home / name).read_bytes() for name in names]
    for name, content in zip(names, contents[1:] + contents[:1], strict=True):
        (home / name).write_bytes(content)
    lowered.clear()
    assert library(built(prepared), tmp_path / "again") == cold and len(lowered) == 4


def test_facts_that_are_something_else_are_made_again(prepared, lowered, home):
    """Sound files, as of another version whose key is the same."""
    built(prepared)
    lowered.clear()
    for path in home.iterdir():
        KernelCache(home, 1 << 30).write(path.name, path.name.encode() + b'{"launches": {"arguments": 1}}')
    store = KernelStore(KernelCache.of_user(), TARGET)
    request = KernelRequest(
        "folded_cuda", None, *[getattr(prepared.layers[0], n) for n in ("spec", "weight", "pattern")]
    )
    assert store.find(store.key(request)) is None


BUILD = """
import sys
from tvm_sparse.frontend.optional_imports import without_torch
with without_torch():
    import four_kernels
    from tvm_sparse.runtime import artifact
    for name in sys.argv[1:]:
        saved = artifact.save(four_kernels.built(four_kernels.prepared_model()), name)
"""


def test_two_processes_at_once(prepared, tmp_path):
    other = subprocess.Popen([sys.executable, "-c", BUILD, str(tmp_path / "other")])
    own = library(built(prepared), tmp_path / "own")
    assert other.wait(timeout=300) == 0
    assert next((tmp_path / "other").glob("*.so")).read_bytes() == own


def recorded(decision, schedule, decisions):
    """`decision` for the kernel of a record."""
    record = make_record(schedule=schedule, decisions=decisions)
    return replace(decision, choice=Recorded(record, record.time_us, is_verified=True))


def test_a_kernel_that_does_not_build_gives_way_to_dense(prepared):
    """With a record, whose dense kernel or the default stands in; without, the cause is raised."""
    decisions = decisions_of(prepared)
    decisions[0] = recorded(decisions[0], "folded_cuda", {"nonsense": 1})
    row = build_model.build(prepared, decisions, TARGET).report()[0]
    assert row["schedule"] == "dense_cuda"
    assert row["reason"].startswith("dense, because schedule folded_cuda:") and "is missing" in row["reason"]
    decisions = decisions_of(prepared, ("folded_cuda:none", *SCHEDULES[1:]))
    with pytest.raises(BuildError, match=r"^schedule folded_cuda:none: does not serve .*: it has no variant 'none'"):
        build_model.build(prepared, decisions, TARGET)


def test_a_worker_that_dies_is_named(prepared, monkeypatch):
    dies = (
        "import os, sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline(); os.kill(os.getpid(), 9)"
    )
    monkeypatch.setattr(Worker, "command", [sys.executable, "-c", dies])
    monkeypatch.setattr(build_pool, "WORKERS_S", 0)
    with pytest.raises(BuildError, match=r"schedule \w+: no kernel: the worker process was killed by SIGKILL"):
        built(prepared)


def test_a_kernel_that_cannot_be_told_apart_is_built_with_the_model(prepared, lowered, monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_source.Launches, "of", lambda *_: None)
    for _ in range(2):
        compiled = built(prepared)
        assert all("kernels" not in row for row in compiled.report())
        assert len(lowered) == 4, "that is remembered too"
    (module,) = imports(compiled.executable.mod)
    assert module.inspect_source().count('extern "C" __global__') // 2 >= 5


def test_kernels_of_a_library_go_to_no_compiler(prepared, lowered):
    """They are calls; the report names what they call, and progress is of the others."""
    seen: list[BuildProgress] = []
    schedules = ("data_cuda", "data_cuda", "csr_cuda", "folded_cuda")
    rows = build_model.build(prepared, decisions_of(prepared, schedules), TARGET, seen.append).report()
    assert sorted(lowered) == ["csr_cuda", "folded_cuda"] and seen[-1].total == 2
    assert all(name.startswith("tvm_sparse_data_") for row in rows[:2] for name in row["kernels"])


def test_progress(prepared, monkeypatch):
    """All kernels, then those that are new; found ones count as done."""
    seen: list[BuildProgress] = []
    built(prepared, seen.append)
    assert [each.done for each in seen] == sorted(each.done for each in seen)
    assert (seen[-1].done, seen[-1].total, seen[-1].found) == (4, 4, 0)
    assert all(each.eta_s >= 0 for each in seen) and seen[-1].eta_s == 0
    seen.clear()
    built(prepared, seen.append)
    assert seen == [BuildProgress(4, 4, 4, 0.0)]
    seen.clear()
    decisions = decisions_of(prepared, ("folded_cuda", "folded_cuda", *SCHEDULES[2:]))
    build_model.build(prepared, decisions, TARGET, seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].found) == (4, 4, 3)


@pytest.fixture
def compiler(monkeypatch) -> list[str]:
    """What is compiled from now on, in two parts each, as if TVM had its CUDA runtime here."""
    parts: list[str] = []

    def steps(source: str, _target: object) -> tuple[list[Callable[[], bytes]], Callable[[list[bytes]], bytes]]:
        def part(number: int) -> bytes:
            parts.append(source)
            if "tvm_sparse_cp_async" in source and "fails" in os.environ:
                raise RuntimeError(f"{source}\nCompilation error:\ntoo many registers")
            return f"part {number} of {source.count('__global__')};".encode()

        return [lambda number=number: part(number) for number in range(2)], b"".join

    for module in (build_pool, kernel_store, kernel_source):
        monkeypatch.setattr(module, "is_compiled_here", lambda: True)
    monkeypatch.setattr(build_pool, "steps", steps)
    return parts


def test_each_source_is_compiled_once(prepared, compiler, home):
    """Of two dense layers one; what all parts became is kept."""
    kernels = kernels_of(prepared)
    assert len(compiler) == 6 and len(set(compiler)) == 3
    compiler.clear()
    again = kernels_of(prepared)
    assert compiler == [] and [each.names for each in again.values()] == [each.names for each in kernels.values()]
    assert sum(path.read_bytes().endswith(b"part 1 of 2;") for path in home.iterdir()) == 2
    assert sum(path.read_bytes().endswith(b"part 1 of 4;") for path in home.iterdir()) == 1


def test_what_the_compiler_rejects_gives_way_to_dense(prepared, compiler, monkeypatch):
    """With a record; without, the compiler's complaint is raised, not the source before it."""
    monkeypatch.setenv("fails", "1")
    decisions = decisions_of(prepared)
    builder = build_plan.KernelBuilder(TARGET, KernelStore(None, TARGET))
    with pytest.raises(BuildError, match=r"^CUDA kernel: cannot be compiled: too many registers$"):
        build_plan.kernels_of(prepared.layers, decisions, TARGET, builder.build)
    space = find_space("folded_cuda", prepared.layers[0].spec, prepared.layers[0].pattern, TARGET)
    decisions[0] = recorded(decisions[0], space.name, space.starts()[0])
    build_plan.kernels_of(prepared.layers, decisions, TARGET, builder.build)
    assert decisions[0].schedule == "dense_cuda"
    assert str(decisions[0].reason).endswith("CUDA kernel: cannot be compiled: too many registers")


def test_a_verified_kernel_is_not_run_again(prepared, monkeypatch):
    """On this machine and with this bias; a wrong one is run, and found wrong, each time."""
    monkeypatch.setattr(verify, "why_not_here", lambda _target: "")
    monkeypatch.setattr(verify, "device_of", lambda _target: tvm.cpu(0))
    layer, runs = prepared.layers[0], []
    layers, scale = [layer], 1.0

    def function(x: tvm.runtime.Tensor, bias: tvm.runtime.Tensor, y: tvm.runtime.Tensor) -> None:
        runs.append(bias.numpy())
        expected = reference.reference(layer.spec, x.numpy(), layer.weight, bias.numpy())
        y.copyfrom((expected.value * scale).astype(np.float32))

    model = SimpleNamespace(jit=lambda: SimpleNamespace(get_function=lambda *_, **__: function))
    decisions = [replace(decisions_of(prepared)[0], choice=Predicted("folded_cuda", None))]

    def wrong(layers: list[ConvLayer]) -> dict[str, str]:
        store = KernelStore(KernelCache.of_user(), TARGET)
        builder = build_plan.KernelBuilder(TARGET, store)
        kernels = build_plan.kernels_of(layers, decisions, TARGET, builder.build)
        runs.clear()
        return verify.verify(layers, decisions, kernels, model, TARGET, store)

    scale = 1.1
    for _ in range(2):
        assert "wrong by" in wrong(layers)[layer.name] and len(runs) == 1
    scale = 1.0
    assert wrong(layers) == {} and len(runs) == 1
    assert wrong(layers) == {} and len(runs) == 0
    assert wrong([replace(layer, bias=layer.bias + 1)]) == {} and len(runs) == 1
    monkeypatch.setattr(verify, "fingerprint_of", lambda _target: {"device": "other"})
    assert wrong(layers) == {} and len(runs) == 1


def test_a_large_batch_is_verified_on_its_distinct_images():
    """All of it is run; one image that is wrong is found, wherever it is."""
    spec = replace(make_record().spec, n=40)
    layer = ConvLayer("conv", spec, np.ones(spec.weight_shape, np.float32), np.zeros(spec.k, np.float32))
    case = verify._Case.of(layer, None)
    assert case.arguments["x"].shape[0] == reference.DISTINCT_IMAGES < spec.n

    def function(x: tvm.runtime.Tensor, bias: tvm.runtime.Tensor, y: tvm.runtime.Tensor) -> None:
        assert x.shape == spec.input_shape
        value = reference.reference(spec, x.numpy(), layer.weight, bias.numpy()).value.astype(np.float32)
        if bad is not None:
            value[bad] += 1
        y.copyfrom(value)

    kernel = SimpleNamespace(constants=(), layouts=NCHW, form=None, interleaving=None, before=())
    for bad in (None, 0, 17, 39):
        worst = case.worst_error(function, kernel, "folded_cuda", tvm.cpu(0))
        assert worst <= 1 if bad is None else worst > 1


@pytest.mark.parametrize("wrong", [False, True])
def test_kernels_of_parts_of_the_channels_are_verified_together(wrong, monkeypatch):
    """The second adds to what the first has written, which adds to the residual."""
    spec = ConvSpec(4, 6, 5, 5, 8, 3, 3, bias=True, residual=True, relu=True)
    weight = np.random.default_rng(0).standard_normal(spec.weight_shape).astype(np.float32)
    layer = ConvLayer("conv", spec, weight, np.ones(spec.k, np.float32))
    monkeypatch.setattr(verify, "shape_of", lambda _: (8, 3, 5, 5))
    half = replace(spec, c=3, bias=False, residual=False, relu=False)

    def sums(x: tvm.runtime.Tensor, part: int) -> np.ndarray:
        assert x.shape == (8, 3, 5, 5)
        return reference.reference(half, x.numpy()[part::2], weight[:, 3 * part : 3 * part + 3]).value

    def first(x: tvm.runtime.Tensor, residual: tvm.runtime.Tensor, y: tvm.runtime.Tensor) -> None:
        y.copyfrom((sums(x, 0) + residual.numpy()).astype(np.float32))

    def last(x: tvm.runtime.Tensor, bias: tvm.runtime.Tensor, added: tvm.runtime.Tensor, y: tvm.runtime.Tensor) -> None:
        value = sums(x, 1) + added.numpy() + bias.numpy()[:, None, None] * (2 if wrong else 1)
        y.copyfrom(np.maximum(value, 0).astype(np.float32))

    part = {"constants": (), "layouts": NCHW, "form": None, "interleaving": None}
    kernel = SimpleNamespace(**part, before=(SimpleNamespace(**part),), func=SimpleNamespace(params=[None]))
    worst = verify._Case.of(layer, None).worst_error(last, kernel, "folded_cuda", tvm.cpu(0), 1, [first])
    assert (worst > 1) == wrong


STUB = """
#define S(name) int name() { return 100; }
S(cuDeviceGetName) S(cuFuncSetAttribute) S(cuLaunchKernelEx) S(cuModuleGetFunction) S(cuModuleLoadData)
S(cuModuleUnload) S(cuTensorMapEncodeTiled) S(cuInit) S(cuDriverGetVersion) S(cuGetProcAddress)
S(cuGetProcAddress_v2)
int cuGetErrorName(int code, const char** text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuGetErrorString(int code, const char** text) { return cuGetErrorName(code, text); }
"""
COMPILED = """
import tvm
from tvm_sparse.codegen.cuda.nvcc import is_compiled_here
assert is_compiled_here()
(library,) = saved.glob("*.so")
found = four_kernels.imports(tvm.runtime.load_module(str(library)))
assert len(found) == 4
for module in found:
    assert not module.inspect_source("cuda"), "source, which would be compiled when it is loaded"
"""


def cuda_runtime() -> Path | None:
    """The folder of the CUDA runtime library that TVM's needs, beside nvcc."""
    path = shutil.which("nvcc")
    done = subprocess.run([path, "--dryrun", "x.cu"], capture_output=True, text=True, check=False) if path else None
    tops = [line.partition("TOP=")[2] for line in done.stderr.splitlines() if "TOP=" in line] if done else []
    found = [path for top in tops for path in Path(top).glob("lib*/libcudart.so.13")]
    return found[0].parent if found else None


@pytest.mark.slow
@pytest.mark.skipif(cuda_runtime() is None, reason="needs nvcc and the CUDA 13 runtime library")
def test_machine_code_is_in_the_artifact_and_nothing_is_compiled_again(tmp_path):
    """With TVM's CUDA runtime on a driver without a device: nvcc makes the code, of the pooling too."""
    (tmp_path / "stub.c").write_text(STUB)
    soname = "-Wl,-soname,libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-w", soname, "-o", "libcuda.so.1", "stub.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    counted = tmp_path / "bin" / "nvcc"
    counted.parent.mkdir()
    counted.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/runs\nexec {shutil.which("nvcc")} "$@"\n')
    counted.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{counted.parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{tmp_path}:{cuda_runtime()}",
    }
    command = [sys.executable, "-c", BUILD + COMPILED, str(tmp_path / "a"), str(tmp_path / "b")]
    subprocess.run(command, env=environment, check=True)
    assert (tmp_path / "runs").read_text().count("--fatbin") == 4
    libraries = [next((tmp_path / name).glob("*.so")).read_bytes() for name in "ab"]
    assert libraries[0] == libraries[1]


@pytest.mark.gpu
def test_on_a_gpu_cold_found_and_loaded_models_are_right(prepared, tmp_path, monkeypatch):
    target = resolve_target("cuda")
    x = np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype(np.float32)
    (want,) = zoo.run_onnx(onnx_model(), x)
    for name in ("cold", "found"):
        compiled = build_model.build(prepared, decisions_of(prepared), target)
        loaded = artifact.load(artifact.save(compiled, tmp_path / name))
        for model in (compiled, loaded):
            y = model(tvm.runtime.tensor(x, tvm.cuda(0)))
            np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-4)
        monkeypatch.setattr(worker_main, "lower", lambda _request: pytest.fail("it was built before"))


def test_what_takes_a_compiler_long() -> None:
    """Non-zeros in the code, and groups above all; where the weight is data neither."""
    weights = {groups: np.ones((96, 96 // groups, 3, 3), np.float32) for groups in (1, 96)}

    def build_s(schedule: str, groups: int) -> float:
        spec = ConvSpec(n=1, c=96, h=14, w=14, k=96, r=3, s=3, groups=groups)
        pattern = replace(SparsityPattern.of(weights[groups]), nnz=864)
        return KernelRequest(schedule, None, spec, weights[groups], pattern).build_s

    assert build_s("folded_cuda:async", 96) > 2 * build_s("folded_cuda:async", 1) > build_s("data_cuda", 1)
    assert build_s("data_cuda", 96) == build_s("data_cuda", 1)
