"""SpaceToDepth, CenterCropPad, Col2Im and Pad are what onnx's reference evaluator says."""

import numpy as np
import pytest
from onnx_nodes import assert_right, imported, numbers, one_node, runtime

from tvm_sparse.errors import ModelError


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_to_channels_and_back(mode):
    x = {"x": numbers(2, 3, 4, 6)}
    assert_right(one_node("SpaceToDepth", x, opset=28, blocksize=2, mode=mode), x)
    x = {"x": numbers(2, 12, 2, 3)}
    assert_right(one_node("DepthToSpace", x, blocksize=2, mode=mode), x)


@pytest.mark.parametrize(
    ("shape", "wanted", "axes"),
    [((5, 6), (2, 9), None), ((5, 6), (8, 3), None), ((1, 5, 4, 3), (4, 7), [-1, 1]), ((7,), (4,), [0])],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_the_middle_is_cropped_or_padded(shape, wanted, axes, dtype):
    x = {"x": (10 * numbers(*shape)).astype(dtype)}
    settings = {} if axes is None else {"axes": axes}
    assert_right(one_node("CenterCropPad", x, {"shape": np.array(wanted)}, **settings), x)


@pytest.mark.parametrize(
    ("image", "block", "blocks", "attributes"),
    [
        ((5, 5), (1, 5), 5, {}),
        ((5, 6), (3, 2), 15, {}),
        ((5, 6), (3, 2), 9, {"strides": [2, 2], "pads": [1, 0, 1, 1]}),
        ((6, 6), (2, 2), 16, {"dilations": [2, 2]}),
        ((4, 5), (2, 1), 6, {"strides": [2, 2]}),
        ((3, 4, 5), (1, 2, 3), 27, {}),
        ((7,), (3,), 5, {}),
    ],
)
def test_blocks_are_added_to_an_image(image, block, blocks, attributes):
    x = {"x": numbers(2, 3 * int(np.prod(block)), blocks)}
    constants = {"image": np.array(image), "block": np.array(block)}
    assert_right(one_node("Col2Im", x, constants, **attributes), x)


@pytest.mark.parametrize(
    ("mode", "pads"),
    [
        ("reflect", [2, 1, 2, 0]),
        ("reflect", [3, 0, 0, 7]),
        ("wrap", [3, 0, 0, 7]),
        ("edge", [0, 2, 5, 0]),
        ("constant", [-1, 2, 0, -2]),
    ],
)
def test_paddings_longer_than_their_axis(mode, pads):
    x = {"x": numbers(3, 4)}
    model = one_node("Pad", x, {"pads": np.array(pads)}, mode=mode)
    before, behind = pads[:2], pads[2:]
    if min(pads) >= 0:
        wanted = np.pad(x["x"], [*zip(before, behind, strict=True)], mode=mode)
    else:
        wanted = np.pad(x["x"][1:, :2], [(0, 0), (2, 0)])
    assert_right(model, x, wanted=wanted)


@pytest.mark.parametrize("mode", ["wrap", "edge"])
def test_paddings_of_what_is_left_of_an_axis(mode):
    x = {"x": numbers(2, 4)}
    model = one_node("Pad", x, {"pads": np.array([-1, 3]), "value": None, "axes": np.array([-1])}, mode=mode)
    assert_right(model, x, wanted=runtime(model, x))


@pytest.mark.parametrize(
    ("mode", "pads", "sentence"),
    [
        ("reflect", [0, -1, 0, 2], "it reflects at an edge that it cuts off"),
        ("wrap", [0, -3, 0, 2], "it cuts off all of an axis"),
        ("reflect", [0, 2**25, 0, 0], "its output is too large, found 33554435 elements; allowed: 16777216"),
    ],
)
def test_paddings_that_are_refused(mode, pads, sentence):
    with pytest.raises(ModelError, match=sentence):
        imported(one_node("Pad", {"x": numbers(2, 3)}, {"pads": np.array(pads)}, mode=mode))


def test_blocks_that_do_not_fit_are_refused():
    x = {"x": numbers(1, 4, 5)}
    model = one_node("Col2Im", x, {"image": np.array([3, 3]), "block": np.array([2, 2])})
    with pytest.raises(ModelError, match="its blocks do not fit the image, found 4 x 5"):
        imported(model)


def test_a_shape_that_is_computed_is_refused():
    x = {"x": numbers(4, 5), "shape": np.array([2, 2])}
    with pytest.raises(ModelError, match="its input shape is no constant"):
        imported(one_node("CenterCropPad", x))
