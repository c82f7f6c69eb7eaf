"""Pools of any rank with all of their attributes, and LRN, are what ONNX says."""

import numpy as np
import pytest
from onnx_nodes import assert_right, imported, numbers, one_node, runtime

from tvm_sparse.errors import ModelError

LINE, IMAGE, VOLUME = (1, 2, 9), (1, 2, 8, 7), (1, 2, 5, 8, 6)


def pool(op, shape, kernel, **attributes):
    x = {"x": numbers(*shape)}
    return one_node(op, x, kernel_shape=kernel, **attributes), x


# fmt: off
POOLS = {
    "max_volume_lower": pool("MaxPool", VOLUME, [2, 3, 3], strides=[3, 3, 3], auto_pad="SAME_LOWER"),
    "max_volume_upper": pool("MaxPool", VOLUME, [2, 3, 2], strides=[2, 1, 2], auto_pad="SAME_UPPER"),
    "max_line_lower": pool("MaxPool", LINE, [2], strides=[2], auto_pad="SAME_LOWER"),
    "max_ceil": pool("MaxPool", IMAGE, [3, 2], strides=[2, 3], pads=[1, 0, 0, 1], ceil_mode=1),
    "max_dilated": pool("MaxPool", IMAGE, [3, 2], dilations=[2, 3], pads=[1, 1, 1, 1]),
    "average_lower": pool("AveragePool", VOLUME, [2, 3, 3], strides=[3, 3, 3], auto_pad="SAME_LOWER"),
    "average_counted": pool("AveragePool", IMAGE, [2, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "average_ceil": pool("AveragePool", IMAGE, [3, 2], strides=[2, 3], pads=[1, 0, 0, 1], ceil_mode=1),
    "average_dilated": pool("AveragePool", IMAGE, [3, 2], strides=[2, 3], dilations=[2, 1], ceil_mode=1),
    "lp_cubes": pool("LpPool", IMAGE, [2, 3], p=3, pads=[1, 0, 0, 2]),
    "lp_ceil": pool("LpPool", IMAGE, [3, 2], p=1, strides=[2, 3], ceil_mode=1),
    "lp_volume": pool("LpPool", VOLUME, [3, 2, 1], strides=[2, 2, 2], dilations=[1, 2, 1], pads=[1, 0, 0] * 2),
    "lp_lower": pool("LpPool", LINE, [3], strides=[2], auto_pad="SAME_LOWER"),
}
# fmt: on


@pytest.mark.parametrize("name", POOLS)
def test_pool(name):
    model, x = POOLS[name]
    assert_right(model, x, wanted=runtime(model, x))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_dilated_windows_padded_to_the_same_size(op):
    """ONNX Runtime pads such a window as if it were not dilated."""
    model, x = pool(op, LINE, [2], dilations=[2], auto_pad="SAME_LOWER")
    explicit, _ = pool(op, LINE, [2], dilations=[2], pads=[1, 1])
    assert_right(model, x, wanted=runtime(explicit, x))


@pytest.mark.parametrize("shape", [LINE, IMAGE, VOLUME])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op, shape):
    x = {"x": numbers(*shape)}
    model = one_node(op, x, opset=17)
    assert_right(model, x, wanted=runtime(model, x))


def test_windows_smaller_than_the_stride():
    """ONNX Runtime takes off what would be padded less than nothing."""
    model, x = pool("MaxPool", IMAGE, [1, 1], strides=[3, 3], auto_pad="SAME_UPPER", ceil_mode=1)
    assert_right(model, x, wanted=x["x"][:, :, ::3, ::3])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 3, 2), (2, 5, 3, 2, 2)])
def test_sums_over_channels(size, shape):
    """The reference evaluator takes the channels for images, and ONNX Runtime knows odd sizes alone."""
    x = {"x": numbers(*shape)}
    before = (size - 1) // 2
    squares = [x["x"][:, max(c - before, 0) : c - before + size] ** 2 for c in range(5)]
    sums = np.stack([each.sum(1) for each in squares], 1)
    model = one_node("LRN", x, size=size, alpha=0.5, beta=0.6, bias=2.0)
    assert_right(model, x, wanted=x["x"] / (2 + np.float32(0.5 / size) * sums) ** np.float32(0.6))


def test_indices_of_the_largest_are_refused():
    x = {"x": numbers(*IMAGE)}
    with pytest.raises(ModelError, match="node node: it returns indices, found y1; allowed: its first output alone"):
        imported(one_node("MaxPool", x, outputs=2, kernel_shape=[2, 2]))
