"""ONNX's Clip, of any version: one operator that layers take in, and that keeps NaN."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_sparse
from tvm_sparse.frontend.prepare import prepare

SHAPE = (1, 4, 5, 5)


def model(folder, opset: int, least: float | None, most: float | None, behind_a_layer: bool = False) -> str:
    """A file with a Clip, by attributes or constant inputs as the version has it; behind a convolution or not."""
    tensors, bounds, attributes = [], ["", ""], {}
    for place, (name, value) in enumerate((("min", least), ("max", most))):
        if value is not None and opset < 11:
            attributes[name] = value
        elif value is not None:
            bounds[place] = name
            tensors.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
    nodes, x = [], "x"
    if behind_a_layer:
        weight = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
        tensors.append(onnx.numpy_helper.from_array(weight, "w"))
        nodes, x = [helper.make_node("Conv", ["x", "w"], ["t"], name="conv")], "t"
    inputs = [x] if opset < 11 else [x, *bounds]
    nodes.append(helper.make_node("Clip", inputs, ["y"], **attributes))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"]
    graph = helper.make_graph(nodes, "clip", values[:1], values[1:], tensors)
    path = folder / "clip.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return str(path)


@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize(
    ("least", "most", "name"),
    [
        *((0.0, 6.0, "clip"), (-1.0, 1.0, "clip"), (0.0, None, "nn.relu"), (None, 1.0, "where"), (-1.0, None, "where")),
        *((2.0, 1.0, "where"), (0.0, np.inf, "nn.relu"), (-np.inf, 1.0, "where")),
    ],
)
def test_a_clip_keeps_nan(tmp_path, opset, least, most, name):
    """One bound alone, other than zero from below, is a choice, and so are bounds that nothing lies between."""
    path = model(tmp_path, opset, least, most)
    assert f"R.{name}(" in prepare(path).mod["main"].script()
    x = np.linspace(-8, 8, 100, dtype=np.float32).reshape(SHAPE)
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    low, high = -np.inf if least is None else least, np.inf if most is None else most
    found = np.asarray(tvm_sparse.compile(path, target="llvm")(x))
    assert np.array_equal(found, np.minimum(np.maximum(x, low), high), equal_nan=True)


def test_bounds_that_are_inputs(tmp_path):
    """They are known when the model runs."""
    of = {"x": SHAPE, "min": [], "max": [], "y": SHAPE}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in of.items()]
    graph = helper.make_graph([helper.make_node("Clip", ["x", "min", "max"], ["y"])], "clip", values[:3], values[3:])
    path = str(tmp_path / "clip.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    x = np.linspace(-8, 8, 100, dtype=np.float32).reshape(SHAPE)
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    for least, most in ((-1, 2), (-np.inf, 2), (3, -3)):
        bounds = np.array(least, np.float32), np.array(most, np.float32)
        found = np.asarray(tvm_sparse.compile(path, target="llvm")(x, *bounds))
        assert np.array_equal(found, np.minimum(np.maximum(x, bounds[0]), bounds[1]), equal_nan=True)


@pytest.mark.parametrize("opset", [7, 13])
def test_a_layer_takes_it_in(tmp_path, opset):
    (layer,) = prepare(model(tmp_path, opset, 0.0, 6.0, behind_a_layer=True)).layers
    assert layer.spec.relu and layer.spec.relu_max == 6.0
    (layer,) = prepare(model(tmp_path, opset, -1.0, 6.0, behind_a_layer=True)).layers
    assert not layer.spec.relu
