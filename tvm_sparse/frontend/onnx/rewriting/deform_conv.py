"""ONNX's DeformConv as samples of the input, one for each tap of the kernel, and a 1x1 convolution of them.

So its layer is one that can be compiled for its zeros.
"""

import numpy as np

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import Replacement, Rewrite


def rewrite_deform_conv(to: Replacement) -> str:
    """See `Rewrite`."""
    shape, weight = to.shape(to.input(0)), to.shape(to.input(1))
    if len(shape) != 4:
        raise ModelError(to.where, "it has data of another rank", len(shape), "images, of rank 4", "use Conv instead")
    batch, channels, height, width = shape
    groups, taps = to.attributes.get("offset_group", 1), weight[2] * weight[3]
    rows, columns = to.shape(to.input(2))[2:]
    # Of each group of channels that moves alike.
    images = to.reshape(to.input(0), [batch * groups, channels // groups, height, width])
    offsets = to.reshape(to.input(2), [batch * groups, taps, 2, rows, columns])
    sizes = np.array([height, width]).reshape(2, 1, 1)
    # Pixel p of n is at (2 p + 1) / n - 1 of GridSample's.
    start = (2 * _places(to, weight[2:], rows, columns) + 1) / sizes - 1
    scaled = to.add("Mul", offsets, _constant(to, 2 / sizes))
    places = to.add("Add", scaled, _constant(to, start))
    last = to.add("Transpose", places, perm=[0, 1, 3, 4, 2])
    # Columns come first there.
    turned = to.add("Gather", last, to.constant(np.array([1, 0])), axis=4)
    grid = to.reshape(turned, [batch * groups, taps * rows, columns, 2])
    samples = to.add("GridSample", images, grid, mode="linear", padding_mode="zeros", align_corners=0)
    if to.input(4):
        samples = to.reshape(samples, [batch * groups, channels // groups, taps, rows, columns])
        mask = to.reshape(to.input(4), [batch * groups, 1, taps, rows, columns])
        samples = to.add("Mul", samples, mask)
    samples = to.reshape(samples, [batch, channels * taps, rows, columns])
    kernel = to.reshape(to.input(1), [weight[0], weight[1] * taps, 1, 1])
    inputs = [samples, kernel, *filter(None, [to.input(3)])]
    return to.add("Conv", *inputs, group=to.attributes.get("group", 1), kernel_shape=[1, 1])


def _places(to: Replacement, kernel: list[int], rows: int, columns: int) -> np.ndarray:
    """Which pixels the taps read where no offset moves them; shape (taps, 2, rows, columns)."""
    strides, dilations = (to.attributes.get(name, [1, 1]) for name in ("strides", "dilations"))
    pads = to.attributes.get("pads", [0, 0, 0, 0])
    down, right = (
        np.arange(kernel[axis])[:, None] * dilations[axis] + np.arange(count) * strides[axis] - pads[axis]
        for axis, count in enumerate((rows, columns))
    )
    both = np.broadcast_arrays(down[:, None, :, None], right[None, :, None, :])
    return np.stack(both, 2).reshape(-1, 2, rows, columns)


def _constant(to: Replacement, value: np.ndarray) -> str:
    return to.constant(value.astype(to.dtype(to.input(0))))


REWRITES: dict[str, Rewrite] = {"DeformConv": rewrite_deform_conv}
