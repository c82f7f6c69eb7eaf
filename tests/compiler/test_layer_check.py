"""`check` finds a wrong kernel and a wrong import, names the first layer that diverges, and ends with code 5."""

import json

import numpy as np
import onnx
import pytest
import torch
import zoo
from parameters import sampled

from tvm_sparse.cli import main
from tvm_sparse.compiler.build_model import build
from tvm_sparse.compiler.building import make_kernels
from tvm_sparse.compiler.checking import onnx_runtime
from tvm_sparse.compiler.checking.expose_layers import expose
from tvm_sparse.compiler.checking.layer_check import DIFFERS, OK, WRONG, Exposed, LayerCheck, first_divergence
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.conv.reference import AGREEMENT, relative_difference
from tvm_sparse.frontend.onnx.model import load_onnx
from tvm_sparse.frontend.onnx.rewriting.fold_nodes import fold_nodes
from tvm_sparse.frontend.passes.find_convolutions import find_convolutions
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.scheduling.kernel import kernel_of
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({**zoo.UNOPTIMISED, "num-cores": 1})
X = np.random.default_rng(5).standard_normal(zoo.X).astype(np.float32)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def block(tmp_path):
    onnx.save(zoo.ONNX["block"], tmp_path / "block.onnx")
    return tmp_path / "block.onnx"


def call(capsys, *words):
    """Exit code, document and standard error of a check."""
    code = main.main(["check", *map(str, words), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


@pytest.mark.parametrize("name", sampled(zoo.TORCH, [*zoo.TORCH][::3]))
def test_exposing_changes_no_layer_and_no_result(name):
    module, shapes = zoo.TORCH[name]
    prepared = prepare(module, tuple(torch.zeros(shape) for shape in shapes))
    arrays = zoo.inputs_of(shapes)
    exposed = Exposed.of(prepared)
    assert [(a.name, a.spec) for a in exposed.prepared.layers] == [(b.name, b.spec) for b in prepared.layers]
    compiled = build(exposed.prepared, decide(exposed.prepared.layers, TARGET, None), TARGET)
    tensors = compiled(*arrays)
    for got, want in zip(tensors, zoo.run_torch(module, *arrays), strict=False):
        assert relative_difference(got, want) < 1e-5
    checks = exposed.check_layers(tensors, [row["schedule"] for row in compiled.report()], None)
    assert [each.name for each in checks] == [layer.name for layer in prepared.layers]
    assert all(each.verdict == OK and each.error <= 1 for each in checks)


def test_all_layers_agree(block, capsys):
    np.save("x.npy", X)
    code, found, err = call(capsys, block, "--input", "x.npy", "--seed", "3")
    assert code == 0
    assert (err, found["baseline"]) == ("", "onnxruntime")
    assert [each["input"] for each in found["inputs"]] == ["random, seed 3", "x.npy"]
    for each in found["inputs"]:
        assert [layer["name"] for layer in each["layers"]] == ["Conv_0", "Conv_3", "Conv_5"]
        for layer in each["layers"]:
            assert 0 <= layer["error"] <= 1
            # Folding batch norms rounds weights once more than ONNX Runtime does.
            assert 0 <= layer["baseline_error"] <= 2
            assert layer["difference"] < 1e-5 and layer["verdict"] == OK
        assert [output["name"] for output in each["outputs"]] == ["y"]
        assert each["first_divergence"] is None
    assert main.main(["check", str(block)]) == 0
    text = capsys.readouterr().out
    assert "onnxruntime's" in text and "All layers are within their bounds" in text


def test_a_wrong_kernel_is_named(block, capsys, monkeypatch):
    """The second layer's kernel is made with a weight that lacks one value."""
    true_kernel = kernel_of

    def wrong(each, schedule, weight):
        if any(parameter.name == "residual" for parameter in each.func.params):
            weight = weight.copy()
            weight[2, 1, 0, 1] = 0
        return true_kernel(each, schedule, weight)

    monkeypatch.setattr(make_kernels, "kernel_of", wrong)
    # Another test may have built the same model.
    monkeypatch.setenv("TVM_SPARSE_CACHE_MIB", "0")
    code, found, err = call(capsys, block)
    assert code == 5
    (each,) = found["inputs"]
    layers = {layer["name"]: layer for layer in each["layers"]}
    assert each["first_divergence"]["name"] == "Conv_3"
    assert layers["Conv_3"]["verdict"] == WRONG and layers["Conv_3"]["error"] > 100
    assert layers["Conv_0"]["verdict"] == layers["Conv_5"]["verdict"] == OK
    last = err.splitlines()[-1]
    assert "layer Conv_3 (dense_cpu) is wrong" in last and "its error bound" in last


def test_a_wrong_import_is_found_where_it_first_shows(block, capsys, monkeypatch):
    """ONNX Runtime runs another model: an operator before Conv_3 differs, each of our kernels is right."""
    other = onnx.ModelProto()
    other.CopyFrom(zoo.ONNX["block"])
    (relu,) = [node for node in other.graph.node if node.output[0] == "r1"]
    relu.op_type = "Abs"
    monkeypatch.setattr(onnx_runtime, "load_onnx", lambda _: other)
    code, found, err = call(capsys, block)
    assert code == 5
    (each,) = found["inputs"]
    verdicts = {row["name"]: row["verdict"] for row in (*each["layers"], *each["outputs"])}
    # Conv_0 and its ReLU are one kernel of ours, which the other model has no counterpart of.
    assert verdicts == {"Conv_0": OK, "Conv_3": DIFFERS, "Conv_5": OK, "y": DIFFERS}
    assert "layer Conv_3 is where results begin to differ" in err and "look at the operators before it" in err


def test_an_exported_program_is_compared_with_torch(capsys):
    module, shapes = zoo.TORCH["residual"]
    torch.export.save(zoo.export_quietly(module, zoo.inputs_of(shapes)), "m.pt2")
    code, found, _ = call(capsys, "m.pt2")
    assert (code, found["baseline"]) == (0, "torch")
    (each,) = found["inputs"]
    assert all(layer["error"] <= 1 and layer["difference"] is None for layer in each["layers"])
    assert 0 <= each["outputs"][0]["difference"] < 1e-5


def test_without_onnx_runtime_the_reference_is_left(block, capsys, monkeypatch):
    monkeypatch.setattr("tvm_sparse.reports.checking.importlib.util.find_spec", lambda _: None)
    code, found, _ = call(capsys, block)
    assert (code, found["baseline"]) == (0, None)
    assert "pip install onnxruntime" in found["notes"][0]
    (each,) = found["inputs"]
    assert all(layer["error"] <= 1 for layer in each["layers"])
    assert each["outputs"][0]["difference"] == 0


@pytest.mark.parametrize(("value", "code"), [(np.nan, 3), (np.inf, 3), (1e36, 0)])
def test_inputs_that_are_not_finite_are_refused(block, capsys, value, code):
    array = X.copy()
    array[0, 0, 0, 0] = value
    np.save("x.npy", array)
    assert main.main(["check", str(block), "--input", "x.npy"]) == code
    assert ("holds NaN or infinity" in capsys.readouterr().err) == (code == 3)


@pytest.mark.parametrize("name", zoo.ONNX)
def test_layers_are_found_in_the_graph(name, tmp_path):
    onnx.save(zoo.ONNX[name], tmp_path / "m.onnx")
    layers = {layer.name: layer for layer in prepare(tmp_path / "m.onnx").layers}
    model = load_onnx(tmp_path / "m.onnx")
    fold_nodes("m.onnx", model)
    names = onnx_runtime.find_names(model, {n: layer.spec for n, layer in layers.items()})
    expected = {
        "block": {"Conv_0": ("x", "", "r1"), "Conv_3": ("r1", "c3", "y"), "Conv_5": ("x", "", "c3")},
    }.get(name, {next(iter(layers)): ("x", "", "y")})
    assert {layer: (each.data, each.residual, each.result) for layer, each in names.items()} == expected


def test_a_layer_that_ends_inside_an_operator_has_no_counterpart(tmp_path, capsys):
    """Ours computes the scaling and shift of HardSigmoid, for whose results ONNX has no tensor."""
    nodes = [("Conv", ["x", "w"], ["t"], {"pads": [1, 1, 1, 1]}), ("HardSigmoid", ["t"], ["y"], {"alpha": 1 / 6})]
    onnx.save(zoo.onnx_model(nodes, {"w": zoo._random(4, 4, 3, 3)}, {"x": zoo.X}, {"y": zoo.X}), tmp_path / "m.onnx")
    code, found, _ = call(capsys, tmp_path / "m.onnx")
    (each,) = found["inputs"]
    assert code == 0 and [layer["difference"] for layer in each["layers"]] == [None]
    assert each["outputs"][0]["difference"] < 1e-5


def test_filters_that_nothing_reads_are_not_compared(tmp_path, capsys):
    """What they compute is zero here; of 16 filters all stay, as dense kernels compute whole vectors."""
    first, second = zoo._random(16, 4, 3, 3), zoo._random(4, 16, 3, 3)
    second[:, 5] = 0
    shapes = {"x": zoo.X}, {"y": zoo.X}
    nodes = [
        ("Conv", ["x", "v"], ["t"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["t"], ["r"], {}),
        ("Conv", ["r", "w"], ["y"], {"pads": [1, 1, 1, 1]}),
    ]
    onnx.save(zoo.onnx_model(nodes, {"v": first, "w": second}, *shapes), tmp_path / "m.onnx")
    layers = prepare(str(tmp_path / "m.onnx")).layers
    assert not layers[0].weight[5].any() and layers[0].weight.any(axis=(1, 2, 3)).sum() == 15
    code, found, _ = call(capsys, tmp_path / "m.onnx")
    (each,) = found["inputs"]
    assert code == 0 and all(layer["difference"] < 1e-5 for layer in each["layers"])


@pytest.mark.parametrize(
    ("error", "difference", "verdict"),
    [
        (0.5, None, OK),
        (1.0, 1e-3, OK),
        (1.01, 0.0, WRONG),
        (np.inf, None, WRONG),
        (np.nan, None, WRONG),
        (0.5, 2e-3, DIFFERS),
        (None, np.inf, DIFFERS),
        (None, None, OK),
    ],
)
def test_verdicts(error, difference, verdict):
    found = LayerCheck("conv", "dense_cpu", error, None, difference)
    assert found.verdict == verdict
    json.dumps(found.to_json(), allow_nan=False)
    assert first_divergence([LayerCheck("a", None, None, None, None), found]) == (None if verdict == OK else found)


def test_expose_returns_tensors_once():
    module, shapes = zoo.TORCH["two_consumers"]
    exposed, places = expose(prepare(module, torch.zeros(shapes[0])).mod)
    assert len(find_convolutions(exposed)) == 3
    # Two outputs of its own, the input, and the first result, which both others read.
    assert [(each.data, each.residual) for each in places] == [(3, None), (2, None), (2, None)]
    assert len(exposed["main"].ret_ty.fields) == 6


def test_divergence_needs_a_number():
    assert relative_difference(np.array([np.nan]), np.array([1.0])) == np.inf
    assert relative_difference(np.array([1.0]), np.array([np.nan])) == np.inf
    assert relative_difference(np.array([np.nan, np.inf]), np.array([np.nan, np.inf])) == 0
    assert relative_difference(np.array([np.inf]), np.array([-np.inf])) == np.inf
    assert relative_difference(np.zeros((1, 2)), np.zeros((2, 1))) == np.inf
    assert relative_difference(np.array([1.0, 3.0]), np.array([1.0, 4.0])) == 0.25
    assert AGREEMENT == 1e-3
