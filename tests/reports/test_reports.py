"""`inspect`, `bench` and `check` in Python return what the commands of these names print."""

import json

import numpy as np
import onnx
import pytest
import torch
import zoo

import tvm_sparse as ts
from tvm_sparse.cli import main
from tvm_sparse.compiler.checking import layer_check
from tvm_sparse.display.words import cell
from tvm_sparse.errors import InputError, UsageError
from tvm_sparse.reports import benchmark
from tvm_sparse.runtime.signature import TensorSpec
from tvm_sparse.verdict.measured import DENSE, OURS, Times

pytestmark = pytest.mark.usefixtures("unoptimised")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The path of a model with an input ``x.1`` and an output ``y``."""
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    weight = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    weight[np.abs(weight) < 1.5] = 0
    nodes = [("Conv", ["x.1", "conv.weight"], ["t"], {"pads": [1, 1, 1, 1]}), ("Relu", ["t"], ["y"], {})]
    onnx.save(zoo.onnx_model(nodes, {"conv.weight": weight}, {"x.1": (1, 4, 9, 9)}, {"y": (1, 8, 9, 9)}), path)
    return path


def printed(capsys, *words):
    """What a command prints on standard output, without what ends a table's lines."""
    capsys.readouterr()
    assert main.main([*map(str, words)]) == 0
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("function", "words", "options"),
    [
        (ts.inspect, ["--batch", "1,2", "--patterns", "0.5"], {"batch": [1, 2], "patterns": 0.5}),
        (ts.check, ["--seed", "3", "--threads", "1"], {"seed": 3, "threads": 1}),
    ],
)
def test_the_commands_print_what_the_functions_return(function, words, options, model, capsys):
    report = function(model, **options)
    name = function.__name__
    assert json.loads(printed(capsys, name, model, *words, "--json")) == json.loads(json.dumps(report.to_json()))
    assert printed(capsys, name, model, *words) == repr(report)
    assert printed(capsys, name, model, *words, "-v") == report.table(details=True)
    assert "<table>" in report._repr_html_() and report.failure is None


def test_what_was_compiled_is_timed_beside_its_file(model, monkeypatch):
    def measured(ours, dense, file, *_, **_options):
        assert (ours.model, file) == (fast, fast.file) and dense.signature == fast.signature
        return Times(1, {OURS: (100.0,), DENSE: (200.0,)})

    monkeypatch.setattr(benchmark, "measured", measured)
    fast = ts.compile(model)
    report = ts.bench(fast)
    assert report.to_json()["verdict"]["speedup"] == 2 and "model: 200 -> 100 us, 2x (measured; " in repr(report)


def test_a_check_that_fails_says_so(model, monkeypatch):
    monkeypatch.setattr(layer_check, "AGREEMENT", -1.0)
    report = ts.check(model)
    assert "where results begin to differ" in str(report.failure) and repr(report).endswith(str(report.failure))


def test_a_module_is_checked_beside_torch_on_given_inputs():
    module, shapes = zoo.TORCH["residual"]
    x = tuple(map(torch.from_numpy, zoo.inputs_of(shapes)))
    name = ts.compile(module, x).signature.inputs[0].name
    report = ts.check(module, x, inputs={name: np.concatenate([x[0], x[0]])}).to_json()
    assert (report["baseline"], [each["input"] for each in report["inputs"]]) == ("torch", ["random, seed 0", "yours"])
    for inputs in ([x[0], x[0]], {"z": x[0]}, x[0][:, :1]):
        with pytest.raises(InputError, match=r"^inputs: (wrong number|lacks input|input .* has the wrong shape)"):
            ts.check(module, x, inputs=inputs)


def test_batches_are_checked_each(model, capfd):
    found = ts.check(model, batch=[1, 3])
    assert [each["variant"] for each in found.to_json()["variants"]] == ["batch 1", "batch 3"] and found.failure is None
    assert "batch 3, random" in repr(found) and "onnxruntime" not in capfd.readouterr().err


def test_a_share_of_zeros_is_between_0_and_1(model):
    with pytest.raises(UsageError, match=r"patterns: is no share of zeros, found 1\.5"):
        ts.inspect(model, patterns=1.5)


def test_names_do_not_steer_a_terminal():
    name = "x\x1b[31m"
    assert str(TensorSpec(name, (1,), "float32")) == r"x\x1b[31m float32[1]" and cell(name) == r"x\x1b[31m"


def test_tensors_go_by_the_names_of_the_file(model, tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 4, 9, 9)).astype(np.float32)
    fast = ts.compile(model, batch=[1, 2])
    folder = fast.save(tmp_path / "tiny.sparse")
    for each in (fast, fast.models["batch 1"], ts.load(folder), ts.load(folder, device="cpu")):
        found = each({"x.1": x})
        assert list(found) == ["y"] and np.array_equal(found["y"], each(x))
        with pytest.raises(InputError, match=r"inputs: lacks input x\.1, found x; allowed: x\.1 float32"):
            each({"x": x})
        with pytest.raises(InputError, match=r"inputs: no such input, found z; allowed: x\.1 float32"):
            each({"x.1": x, "z": x})
    three = np.concatenate([x, x, x])
    assert np.array_equal(fast({"x.1": three})["y"], fast(three))
    for device in ("cuda", "cuda:1", "cpu:1"):
        with pytest.raises(UsageError, match=f"device: the model does not run on it, found {device}; allowed: cpu"):
            ts.load(folder, device=device)
