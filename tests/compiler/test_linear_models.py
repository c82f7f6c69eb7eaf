"""Models with sparse linear layers from end to end: numbers, choices, no copies, and what the commands say of them."""

import functools
import json

import linear_zoo
import numpy as np
import onnx
import pytest
import torch
import zoo
from parameters import sampled
from test_build_model import record
from torch import nn

from tvm_sparse.cli import main
from tvm_sparse.compiler import build_model, build_plan, relax_pipeline
from tvm_sparse.compiler.building import make_kernels
from tvm_sparse.compiler.checking.layer_check import OK, Exposed
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

TARGET = resolve_target({**zoo.UNOPTIMISED, "num-cores": 1})
OPTIMISED = resolve_target('{"kind":"llvm","num-cores":1}')
CUDA = resolve_target({"kind": "cuda", "arch": "sm_90"})
MODELS = ("classifier", "three_axes", "skip_three_axes", "one_row", "shared", "two_outputs", "attention", "parameter")


@functools.cache
def prepared_model(name):
    module, shape, _ = linear_zoo.TORCH[name]
    (x,) = zoo.inputs_of([shape])
    return prepare(module, torch.from_numpy(x)), x


def log_of(prepared, path, **changes):
    """A log by which every linear layer is computed by `linear_cpu`."""
    log = TuningLog(path)
    for layer in prepared.layers:
        if is_linear(layer.spec):
            fields = {"target": target_json(TARGET), "fingerprint": fingerprint_of(TARGET), **changes}
            log.append(record(layer, schedule="linear_cpu", **fields))
    return log


def assert_right(compiled, module, x):
    """Against the module in float64."""
    outputs = compiled(x)
    with torch.no_grad():
        expected = module.double()(torch.from_numpy(x).double())
    module.float()
    several = isinstance(expected, tuple)
    for got, want in zip(outputs if several else [outputs], expected if several else [expected], strict=True):
        assert got.shape == tuple(want.shape)
        assert relative_difference(got, want.numpy()) < 1e-6


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_tuned", [False, True], ids=["no log", "log"])
def test_models_are_right(name, is_tuned, tmp_path):
    prepared, x = prepared_model(name)
    log = log_of(prepared, tmp_path / "log.jsonl") if is_tuned else None
    compiled = build_model.build(prepared, decide(prepared.layers, TARGET, log), TARGET)
    for row, layer in zip(compiled.report(), prepared.layers, strict=True):
        assert row["schedule"] == ("linear_cpu" if is_tuned and layer.is_linear else "dense_cpu")
    assert_right(compiled, linear_zoo.TORCH[name][0], x)


@pytest.mark.parametrize("target", [TARGET, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_no_copy_is_left(name, target):
    """No kernel that is called is a reshape."""
    prepared, _ = prepared_model(name)
    kernels = build_plan.kernels_of(prepared.layers, decide(prepared.layers, target, None), target)
    replaced = build_plan.replace_convolutions(prepared.mod, kernels)
    with target:
        lowered = relax_pipeline.relax_pipeline(target)(replaced)
    text = lowered["main"].script()
    called = [each.name_hint for each in lowered.get_global_vars() if f"    {each.name_hint}(" in text]
    assert called and not [each for each in called if "reshape" in each]


def test_a_wrong_transferred_kernel_gives_way_to_dense(tmp_path, monkeypatch):
    prepared, x = prepared_model("classifier")
    log = log_of(prepared, tmp_path / "log.jsonl", error=None)
    true_kernel = make_kernels.kernel_of

    def wrong_kernel(space, schedule, weight):
        return true_kernel(space, schedule, weight * 2 if space.schedule == "linear_cpu" else weight)

    decisions = decide(prepared.layers, TARGET, log)
    assert [each.transferred for each in decisions] == [False, True, True, True]
    monkeypatch.setattr(make_kernels, "kernel_of", wrong_kernel)
    # Another test may have built the same model.
    monkeypatch.setenv("TVM_SPARSE_CACHE_MIB", "0")
    compiled = build_model.build(prepared, decisions, TARGET)
    assert {row["schedule"] for row in compiled.report()} == {"dense_cpu"}
    assert compiled.report()[1]["reason"].startswith("dense, because the transferred kernel is wrong by")
    assert_right(compiled, linear_zoo.TORCH["classifier"][0], x)


def test_a_dense_layer_stays_tvms_product():
    prepared, x = prepared_model("dense")
    assert not prepared.layers
    compiled = build_model.build(prepared, [], TARGET)
    assert compiled.report() == []
    assert_right(compiled, linear_zoo.TORCH["dense"][0], x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_passes_zeros_by(value, tmp_path):
    """With few and with many images, of which some vectors of `linear_cpu` are not full.

    LLVM's optimiser could take values for finite.
    """
    layer = linear_zoo.linear(300, 24, 0.1)
    place = int((layer.weight != 0).sum(0).argmax())
    module = nn.Sequential(layer).eval()
    for rows in (1, 21):
        (x,) = zoo.inputs_of([(rows, 300)])
        x[0, place] = value
        prepared = prepare(module, torch.from_numpy(x))
        log = log_of(prepared, tmp_path / f"{rows}.jsonl", target=target_json(OPTIMISED))
        fast = build_model.build(prepared, decide(prepared.layers, OPTIMISED, log), OPTIMISED)
        assert {row["schedule"] for row in fast.report()} == {"linear_cpu"}
        strict = build_model.compile(module, torch.from_numpy(x), target=OPTIMISED, log=log, strict_nonfinite=True)
        connected = layer.weight.detach().numpy()[:, place] != 0
        assert connected.any() and not connected.all()
        found = fast(x)
        np.testing.assert_array_equal(np.isfinite(found[0]), ~connected)
        assert np.isfinite(found[1:]).all()
        np.testing.assert_allclose(strict(x), zoo.run_torch(module, x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_exposed_layers_are_checked(name, tmp_path):
    prepared, x = prepared_model(name)
    exposed = Exposed.of(prepared)
    assert [(a.name, a.spec) for a in exposed.prepared.layers] == [(b.name, b.spec) for b in prepared.layers]
    log = log_of(prepared, tmp_path / "log.jsonl")
    compiled = build_model.build(exposed.prepared, decide(exposed.prepared.layers, TARGET, log), TARGET)
    checks = exposed.check_layers(compiled(x), [row["schedule"] for row in compiled.report()], None)
    assert [each.name for each in checks] == [layer.name for layer in prepared.layers]
    assert all(each.error is not None and each.verdict == OK for each in checks)


CHECKED = ["gemm", "gemm_transposed_input", "gemm_full_bias", "matmul"]


def call(capsys, *words):
    code = main.main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", sampled(linear_zoo.ONNX, CHECKED))
def test_check_compares_with_onnx_runtime(name, tmp_path, capsys):
    model, (layer, _) = linear_zoo.ONNX[name]
    onnx.save(model, tmp_path / "m.onnx")
    code, found = call(capsys, "check", tmp_path / "m.onnx")
    assert code == 0
    (row,) = found["inputs"][0]["layers"]
    assert row["name"] == layer and row["error"] <= 1
    # An input that the graph transposes and a bias of each element have no counterpart there.
    has_counterpart = name not in ("gemm_transposed_input", "gemm_full_bias")
    assert (row["baseline_error"] is not None) == has_counterpart
    assert row["baseline_error"] is None or row["baseline_error"] <= 2


def test_check_finds_a_wrong_layer(tmp_path, capsys, monkeypatch):
    model, _ = linear_zoo.ONNX["matmul_relu"]
    onnx.save(model, tmp_path / "m.onnx")
    true_kernel = make_kernels.kernel_of
    monkeypatch.setattr(
        make_kernels, "kernel_of", lambda s, sch, weight: true_kernel(s, sch, weight * np.float32(1.01))
    )
    # Another test may have built the same model.
    monkeypatch.setenv("TVM_SPARSE_CACHE_MIB", "0")
    code, found = call(capsys, "check", tmp_path / "m.onnx")
    assert code == 5
    assert found["inputs"][0]["first_divergence"]["name"] == "MatMul_0"


def test_commands_list_and_tune_linear_layers(nothing_built, tmp_path, capsys, monkeypatch):
    """`inspect`, `tune`, `compile` and `show` know a linear layer by its name and as what it is."""
    monkeypatch.chdir(tmp_path)
    weights = {"fc.weight": linear_zoo.W, "fc.bias": linear_zoo.B}
    gemm = ("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], {"transB": 1})
    onnx.save(zoo.onnx_model([gemm], weights, {"x": linear_zoo.X}, {"y": (3, 8)}), "m.onnx")
    target = ["--target", json.dumps(target_json(TARGET))]
    code, found = call(capsys, "inspect", "m.onnx", *target)
    (row,) = found["layers"]
    assert (code, row["layer"], row["kind"], row["shape"]) == (0, "fc", "linear", "3x12, 8")
    assert {"linear_cpu", "dense_cpu"} <= set(row["schedules"])
    code, found = call(
        capsys, "tune", "m.onnx", *target, "--trials", "4", "--schedules", "linear_cpu", "-o", "log.jsonl"
    )
    assert (code, found["tasks"][0]["layers"]) == (0, ["fc"])
    code, found = call(capsys, "compile", "m.onnx", *target, "-o", "m.sparse", "--tuning-records", "log.jsonl")
    assert (code, found["layers"][0]["layer"]) == (0, "fc")
    code, found = call(
        capsys, "show", "m.onnx", *target, "--layer", "fc", "--schedule", "linear_cpu", "--stage", "scheduled"
    )
    assert (code, found["kind"]) == (0, "linear") and "offsets" in found["text"]
    assert main.main(["inspect", "m.onnx", *target]) == 0
    assert "\nfc " in capsys.readouterr().out
