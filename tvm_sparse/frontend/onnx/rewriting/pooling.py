"""ONNX's pools that TVM has wrong or not at all: powers over windows, and windows of channels."""

import numpy as np

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import Replacement, Rewrite


def refuse_indices(to: Replacement) -> str | None:
    """MaxPool stays as it is, unless it also says where the largest elements are."""
    if len(to.node.output) > 1 and to.node.output[1]:
        hint = "pool without return_indices"
        raise ModelError(to.where, "it returns indices", to.node.output[1], "its first output alone", hint)
    return None


def rewrite_lp_pool(to: Replacement) -> str:
    """Means of powers, times how many there are; TVM counts fewer where ``ceil_mode`` lets a window end outside."""
    kernel = to.attributes["kernel_shape"]
    ones = [1] * len(kernel)
    window = {name: to.attributes.get(name, ones) for name in ("strides", "dilations")}
    pads = to.attributes.get("pads", [0, 0] * len(kernel))
    if to.attributes.get("ceil_mode"):
        sizes = to.shape(to.input(0))[2:]
        pads = _covering(sizes, kernel, pads, window["strides"], window["dilations"])
    power = float(to.attributes.get("p", 2))
    powers = to.add("Pow", to.add("Abs", to.input(0)), _number(to, power))
    means = to.add("AveragePool", powers, kernel_shape=kernel, pads=pads, count_include_pad=1, **window)
    return to.add("Pow", to.add("Mul", means, _number(to, np.prod(kernel))), _number(to, 1 / power))


def rewrite_max_unpool(to: Replacement) -> str:
    """A scatter into zeros; TVM takes the paddings of other axes, and indices for those of a larger output."""
    kernel, (batch, channels, *sizes) = to.attributes["kernel_shape"], to.shape(to.input(0))
    strides, pads = to.attributes.get("strides", [1] * len(kernel)), to.attributes.get("pads", [0, 0] * len(kernel))
    outs = [
        (size - 1) * stride + extent - before - after
        for size, stride, extent, before, after in zip(
            sizes, strides, kernel, pads[: len(kernel)], pads[len(kernel) :], strict=True
        )
    ]
    shape = [batch, channels, *outs]
    if to.input(2) and (wanted := to.array_of_input(2, "output_shape").tolist()) != shape:
        # ONNX Runtime counts indices in the larger output, onnx's reference in the smaller.
        raise ModelError(to.where, "its output_shape is not what it pooled", wanted, f"{shape}", "pool whole windows")
    flat = [to.reshape(to.input(index), [-1]) for index in (1, 0)]
    zeros = to.add("Expand", _number(to, 0), to.constant(np.array([np.prod(shape)])))
    return to.reshape(to.add("ScatterElements", zeros, *flat, axis=0), shape)


def _covering(
    sizes: list[int], kernel: list[int], pads: list[int], strides: list[int], dilations: list[int]
) -> list[int]:
    """`pads` with so much more behind each axis as the last window needs, which begins no later than the data end."""
    axes, behind = len(sizes), []
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        extent, before, after = (kernel[axis] - 1) * dilations[axis] + 1, pads[axis], pads[axes + axis]
        last = min(-(-(size + before + after - extent) // stride), (size + before - 1) // stride)
        behind.append(max(after, last * stride + extent - size - before))
    return [*pads[:axes], *behind]


def rewrite_lrn(to: Replacement) -> str | None:
    """A window of an even number of channels, or of data of any rank; TVM has the others."""
    shape, size = to.shape(to.input(0)), to.attributes["size"]
    if size % 2 and len(shape) in (3, 4):
        return None
    squares = to.reshape(to.add("Mul", to.input(0), to.input(0)), [shape[0], 1, shape[1], -1])
    pads = [(size - 1) // 2, 0, size // 2, 0]
    means = to.add("AveragePool", squares, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
    scaled = to.add("Mul", to.reshape(means, shape), _number(to, to.attributes.get("alpha", 0.0001)))
    sums = to.add("Add", scaled, _number(to, to.attributes.get("bias", 1.0)))
    return to.add("Div", to.input(0), to.add("Pow", sums, _number(to, to.attributes.get("beta", 0.75))))


def _number(to: Replacement, value: float) -> str:
    return to.constant(np.array(value, to.dtype(to.input(0))))


REWRITES: dict[str, Rewrite] = {
    "MaxPool": refuse_indices,
    "MaxUnpool": rewrite_max_unpool,
    "LpPool": rewrite_lp_pool,
    "LRN": rewrite_lrn,
}
