"""DeformConv is what onnx's reference evaluator says, and a layer that is compiled for its zeros."""

import numpy as np
import onnx
import pytest
from onnx_nodes import assert_right, imported, numbers, one_node

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.prepare import prepare

SETTINGS = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 1]}


def deformed(groups=1, moving=1, is_masked=False, bias=None, **attributes):
    weight = numbers(4, 4 // groups, 2, 3)
    settings = {"strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0], **attributes}
    size = [
        (sides + settings["pads"][axis] + settings["pads"][axis + 2] - (taps - 1) * settings["dilations"][axis] - 1)
        // settings["strides"][axis]
        + 1
        for axis, (sides, taps) in enumerate(zip((5, 6), weight.shape[2:], strict=True))
    ]
    inputs = {
        "x": numbers(2, 4, 5, 6),
        "weight": None,
        "offsets": 2 * numbers(2, moving * 12, *size),
        "bias": None,
        "mask": numbers(2, moving * 6, *size) if is_masked else None,
    }
    model = one_node("DeformConv", inputs, group=groups, offset_group=moving, **attributes)
    for index, (name, value) in {1: ("weight", weight), 3: ("bias", bias)}.items():
        if value is not None:
            model.graph.node[0].input[index] = name
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return onnx.shape_inference.infer_shapes(model), inputs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_masked": True, "bias": numbers(4), **SETTINGS},
        {"groups": 2, "moving": 4, "is_masked": True},
        {"groups": 4, "moving": 2, "bias": numbers(4)},
    ],
)
def test_deform_conv(options):
    assert_right(*deformed(**options), tolerance=1e-4)


def test_its_zeros_are_found(tmp_path):
    model, _ = deformed()
    weight = np.array(onnx.numpy_helper.to_array(model.graph.initializer[0]))
    weight[:, ::2] = 0
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(model, tmp_path / "m.onnx")
    (layer,) = prepare(tmp_path / "m.onnx").layers
    assert layer.weight.shape == (4, 24, 1, 1) and np.count_nonzero(layer.weight) == 48


def test_other_ranks_are_refused():
    inputs = {"x": numbers(1, 2, 5), "weight": numbers(2, 2, 3), "offsets": numbers(1, 3, 3)}
    with pytest.raises(ModelError, match="it has data of another rank, found 3; allowed: images, of rank 4"):
        imported(one_node("DeformConv", inputs))
