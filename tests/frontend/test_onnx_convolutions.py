"""Convolutions of any rank are padded as ONNX says, and give the output that it says."""

import pytest
from onnx_nodes import assert_right, imported, numbers, one_node, runtime

from tvm_sparse.errors import ModelError

LINE, IMAGE, VOLUME = (1, 4, 9), (1, 4, 8, 7), (1, 4, 5, 6, 4)


def layer(op, shape, kernel, group=1, **attributes):
    x, weight = {"x": numbers(*shape)}, numbers(4, 4 // group, *kernel)
    return one_node(op, x, {"weight": weight, "bias": numbers(4)}, group=group, **attributes), x


LAYERS = {
    "line_lower": layer("Conv", LINE, [4], strides=[2], auto_pad="SAME_LOWER"),
    "line_upper": layer("Conv", LINE, [4], strides=[3], auto_pad="SAME_UPPER", group=2),
    "image_lower": layer("Conv", IMAGE, [2, 3], auto_pad="SAME_LOWER", group=4),
    "volume_lower": layer("Conv", VOLUME, [2, 3, 2], strides=[2, 1, 3], auto_pad="SAME_LOWER"),
    "volume_upper": layer("Conv", VOLUME, [2, 1, 4], strides=[2, 2, 1], auto_pad="SAME_UPPER"),
    "line_back": layer("ConvTranspose", LINE, [3], strides=[2], output_shape=[18]),
    "volume_back": layer("ConvTranspose", VOLUME, [3, 2, 2], strides=[2, 2, 1], dilations=[1, 2, 1], group=2),
    "image_back_upper": layer("ConvTranspose", IMAGE, [3, 4], strides=[2, 3], auto_pad="SAME_UPPER"),
    "image_back_lower": layer("ConvTranspose", IMAGE, [3, 4], strides=[2, 3], auto_pad="SAME_LOWER"),
    # A kernel smaller than its stride.
    "image_back_short": layer("ConvTranspose", IMAGE, [1, 2], strides=[3, 4], auto_pad="SAME_LOWER"),
    "larger": layer("ConvTranspose", IMAGE, [3, 3], strides=[3, 2], output_shape=[25, 16]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_convolution(name):
    model, x = LAYERS[name]
    assert_right(model, x, wanted=runtime(model, x), tolerance=1e-4)


@pytest.mark.parametrize(("auto_pad", "pads"), [("SAME_UPPER", [1, 2]), ("SAME_LOWER", [2, 1])])
def test_dilated_kernels_are_padded_to_the_same_size(auto_pad, pads):
    """ONNX Runtime does not know such ones."""
    model, x = layer("Conv", LINE, [2], dilations=[3], auto_pad=auto_pad)
    explicit, _ = layer("Conv", LINE, [2], dilations=[3], pads=pads)
    assert_right(model, x, wanted=runtime(explicit, x), tolerance=1e-4)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            layer("Conv", IMAGE, [3, 3], dilations=[1, 5], pads=[0, 1, 0, 2])[0],
            r"node node: its kernel is larger than its input, found \(3, 11\); allowed: up to \(8, 10\)",
        ),
        (
            layer("ConvTranspose", IMAGE, [3, 3], strides=[2, 2], output_shape=[19, 15])[0],
            r"its output_shape is too large, found \(19, 15\); allowed: up to \(18, 16\)",
        ),
        (
            one_node("MaxPool", {"x": numbers(*IMAGE)}, kernel_shape=[3, 12], strides=[2, 12], pads=[0, 1, 0, 2]),
            r"node node: its kernel is larger than its input, found \(3, 12\); allowed: up to \(8, 10\)",
        ),
    ],
)
def test_refused(model, sentence):
    with pytest.raises(ModelError, match=sentence):
        imported(model)
