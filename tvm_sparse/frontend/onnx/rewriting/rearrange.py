"""ONNX operators that move elements, or add those that meet, as plain nodes where TVM has them wrong or not at all."""

import math
from collections.abc import Sequence

import numpy as np

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import Replacement, Rewrite


def rewrite_space_to_depth(to: Replacement) -> str | None:
    """The mode that TVM does not read: a block's elements are neighbouring channels."""
    if to.attributes.get("mode", "DCR") == "DCR":
        return None
    (batch, channels, height, width), block = to.shape(to.input(0)), to.attributes["blocksize"]
    height, width = height // block, width // block
    blocks = to.reshape(to.input(0), [batch, channels, height, block, width, block])
    moved = to.add("Transpose", blocks, perm=[0, 1, 3, 5, 2, 4])
    return to.reshape(moved, [batch, channels * block**2, height, width])


def rewrite_center_crop_pad(to: Replacement) -> str:
    """A Slice, then a Pad; what is odd is cut off or added behind."""
    shape = to.shape(to.input(0))
    axes = [axis % len(shape) for axis in to.attributes.get("axes") or range(len(shape))]
    wanted = dict(zip(axes, to.array_of_input(1, "shape").tolist(), strict=True))
    missing = [wanted.get(axis, size) - size for axis, size in enumerate(shape)]
    starts = [max(-each, 0) // 2 for each in missing]
    ends = [
        start + min(wanted.get(axis, size), size) for axis, (start, size) in enumerate(zip(starts, shape, strict=True))
    ]
    cropped = to.add("Slice", to.input(0), to.constant(np.array(starts)), to.constant(np.array(ends)))
    before = [max(each, 0) // 2 for each in missing]
    behind = [max(each, 0) - first for each, first in zip(missing, before, strict=True)]
    return to.add("Pad", cropped, to.constant(np.array(before + behind)))


def rewrite_pad(to: Replacement) -> str | None:
    """Reflections that are longer than their axis, of which TVM reads outside it, and what wraps around a cut axis."""
    mode, shape = to.attributes.get("mode", "constant"), to.shape(to.input(0))
    if mode not in ("reflect", "wrap"):
        return None
    pads = list(to.attributes["pads"]) if "pads" in to.attributes else to.array_of_input(1, "pads").tolist()
    axes = to.array_of_input(3, "axes").tolist() if to.input(3) else range(len(shape))
    padded = [(axis % len(shape), pads[at], pads[len(axes) + at]) for at, axis in enumerate(axes)]
    if mode == "reflect" and min(pads, default=0) < 0:
        raise ModelError(
            to.where, "it reflects at an edge that it cuts off", pads, "pads of 0 or more", "slice before it"
        )
    longest = max((max(pair) - (shape[axis] - 1) for axis, *pair in padded), default=0)
    if longest <= 0 if mode == "reflect" else min(pads, default=0) >= 0:
        return None
    data = to.input(0)
    for axis, before, behind in padded:
        to.require_few(shape[axis] + before + behind)
        left = np.arange(max(-before, 0), shape[axis] - max(-behind, 0))
        if not len(left):
            raise ModelError(to.where, "it cuts off all of an axis", pads, "fewer than it has", "leave the axis out")
        indices = np.pad(left, [max(before, 0), max(behind, 0)], mode=mode)
        data = to.add("Gather", data, to.constant(indices), axis=axis) if before or behind else data
    return data


def rewrite_col2im(to: Replacement) -> str:
    """Each pixel is the sum of the elements of the blocks that it is in: a Gather of them and a ReduceSum."""
    image, kernel = (
        to.array_of_input(index, what).tolist() for index, what in ((1, "image_shape"), (2, "block_shape"))
    )
    batch, columns, blocks = to.shape(to.input(0))
    to.require_few(math.prod(image))
    targets = _targets(to, image, kernel)
    if targets.size != math.prod(kernel) * blocks or columns % math.prod(kernel):
        found = f"{columns} x {blocks}"
        raise ModelError(to.where, "its blocks do not fit the image", found, f"{targets.shape}", "export it again")
    channels, elements = columns // math.prod(kernel), targets.size
    flat = to.reshape(to.input(0), [batch, channels, elements])
    # Behind the last element is a zero, for what is in fewer blocks than others.
    padded = to.add("Pad", flat, to.constant(np.array([0, 0, 0, 0, 0, 1])))
    sources = _sources(targets.ravel(), math.prod(image))
    gathered = to.add("Gather", padded, to.constant(sources), axis=2)
    return to.reshape(to.add("ReduceSum", gathered, to.constant(np.array([3])), keepdims=0), [batch, channels, *image])


def _targets(to: Replacement, image: Sequence[int], kernel: Sequence[int]) -> np.ndarray:
    """For each element of each block its place in the flat image, -1 outside; shape (elements, blocks)."""
    axes = len(image)
    strides, dilations = (to.attributes.get(name, [1] * axes) for name in ("strides", "dilations"))
    pads = to.attributes.get("pads", [0, 0] * axes)
    targets, is_inside = np.zeros([1, 1], np.int64), np.ones([1, 1], bool)
    for axis, size in enumerate(image):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        count = (size + pads[axis] + pads[axes + axis] - extent) // strides[axis] + 1
        inner, outer = np.arange(kernel[axis]) * dilations[axis], np.arange(count) * strides[axis]
        places = (inner[:, None] + outer - pads[axis])[None, :, None, :]
        shape = targets.shape[0] * kernel[axis], targets.shape[1] * count
        targets = (targets[:, None, :, None] * size + places).reshape(shape)
        is_inside = (is_inside[:, None, :, None] & (places >= 0) & (places < size)).reshape(shape)
    return np.where(is_inside, targets, -1)


def _sources(targets: np.ndarray, size: int) -> np.ndarray:
    """For each of `size` places those of `targets` that are it, and the number of all where there are no more."""
    order = np.argsort(targets, kind="stable")
    order = order[targets[order] >= 0]
    places, counts = targets[order], np.bincount(targets[order], minlength=size)
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    sources = np.full([size, max(int(counts.max(initial=0)), 1)], len(targets), np.int64)
    sources[places, ranks] = order
    return sources


REWRITES: dict[str, Rewrite] = {
    "SpaceToDepth": rewrite_space_to_depth,
    "CenterCropPad": rewrite_center_crop_pad,
    "Col2Im": rewrite_col2im,
    "Pad": rewrite_pad,
}
