"""ONNX's Resize as Gathers of the elements that each new one is made of, axis by axis.

TVM's own operator stays where it is right and faster: whole factors of nearest elements, and images resized linearly.
Elsewhere its float32 positions take the wrong neighbour at ties, it knows neither ``antialias`` nor ``axes``, and it
scales by the ratio of sizes that were rounded.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import numpy as np

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.interpolation import Positions, exact_scale, positions, taps
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import Replacement, Rewrite

# Coordinates that TVM's linear resizing of images has right.
_LINEAR_COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
# Elements that are added one by one; more are a sum along an axis of their own, which TVM puts into one loop as well.
_MOST_ADDED = 4


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized; `is_whole`: by the ratio of its sizes, else one of them was rounded."""

    index: int
    size: int
    out: int
    is_whole: bool
    where: Positions


_MODES = ("nearest", "linear", "cubic")


def rewrite_resize(to: Replacement) -> str | None:
    """See `Rewrite`."""
    mode = to.attributes.get("mode", "nearest")
    if mode not in _MODES:
        raise ModelError(to.where, "its mode is unknown", mode[:100], ", ".join(_MODES))
    axes = [_axis(to, *each) for each in _scales(to)]
    changed = [axis for axis in axes if not axis.where.is_identity]
    if mode != "nearest" and to.dtype(to.input(0)).kind != "f":
        raise ModelError(
            to.where, f"it resizes {to.dtype(to.input(0))} data", mode, "nearest", "cast the data to float32 before it"
        )
    kept = _kept(to, mode, changed)
    if kept is not None:
        return kept
    data = to.input(0)
    for axis in changed:
        data = _nearest(to, data, axis) if mode == "nearest" else _weighted(to, data, axis, mode)
        if axis.where.outside().any() and _coordinates(to) == "tf_crop_and_resize":
            data = _extrapolated(to, data, axis)
    return data


def _scales(to: Replacement) -> list[tuple[int, Fraction]]:
    """The axes that a node resizes, and the scale of each."""
    shape = to.shape(to.input(0))
    axes = _axes(to)
    if _has_sizes(to):
        sizes = to.array_of_input(3, "sizes").tolist()
        ratios = [Fraction(size, shape[axis]) for axis, size in zip(axes, sizes, strict=True)]
        policy = to.attributes.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            ratios = [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)
        return list(zip(axes, ratios, strict=True))
    scales, outs = to.array_of_input(2, "scales").tolist(), to.shape(to.node.output[0])
    return [(axis, exact_scale(shape[axis], outs[axis], scale)) for axis, scale in zip(axes, scales, strict=True)]


def _axes(to: Replacement) -> list[int]:
    rank = len(to.shape(to.input(0)))
    return [axis % rank for axis in to.attributes.get("axes") or range(rank)]


def _has_sizes(to: Replacement) -> bool:
    return bool(to.input(3)) and to.shape(to.input(3)) != [0]


def _axis(to: Replacement, index: int, scale: Fraction) -> _Axis:
    size, out = (to.shape(name)[index] for name in (to.input(0), to.node.output[0]))
    if not out or not size:
        raise ModelError(
            to.where, f"it resizes axis {index}", f"{size} to {out} elements", "1 or more", "resize it less"
        )
    to.require_few(out)
    coordinates, is_whole = _coordinates(to), scale * size == out
    if not is_whole and coordinates in ("align_corners", "tf_crop_and_resize"):
        # ONNX Runtime aligns the last element, and onnx's own tests a place behind it.
        found = f"a factor of {float(scale):g} for {size} elements"
        hint = "export it with sizes, as torch does for interpolate(..., recompute_scale_factor=True)"
        raise ModelError(
            to.where, f"it resizes to a size that is no whole number, with {coordinates}", found, "whole sizes", hint
        )
    roi = _region(to, index) if coordinates == "tf_crop_and_resize" else (0.0, 1.0)
    return _Axis(index, size, out, is_whole, positions(size, out, scale, coordinates, roi))


def _region(to: Replacement, index: int) -> tuple[float, float]:
    """Where the part of an axis that is resized starts and ends."""
    if not _has_sizes(to):
        raise ModelError(to.where, "it crops and scales", "scales", "sizes", "export it with sizes")
    places, axes = to.array_of_input(1, "roi").tolist(), _axes(to)
    return places[axes.index(index)], places[axes.index(index) + len(axes)]


def _coordinates(to: Replacement) -> str:
    return to.attributes.get("coordinate_transformation_mode", "half_pixel")


def _kept(to: Replacement, mode: str, changed: list[_Axis]) -> str | None:
    """A Resize that TVM has right, where there is one."""
    shape, coordinates = to.shape(to.input(0)), _coordinates(to)
    is_image = len(shape) == 4 and {axis.index for axis in changed} <= {2, 3}
    if not changed or not is_image or to.dtype(to.input(0)) != np.float32:
        return None
    if mode == "nearest":
        if not all(_is_repeated(to, axis) for axis in changed):
            return None
        settings = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    elif mode == "linear" and coordinates in _LINEAR_COORDINATES and not to.attributes.get("exclude_outside"):
        if not all(axis.is_whole for axis in changed) or _is_smoothed(to, changed):
            return None
        outs = [to.shape(to.node.output[0])[axis] for axis in (2, 3)]
        if coordinates == "align_corners" and 1 in outs:
            return None
        settings = {"coordinate_transformation_mode": coordinates}
    else:
        return None
    sizes = to.constant(np.array(to.shape(to.node.output[0]), np.int64))
    return to.add("Resize", to.input(0), "", "", sizes, mode=mode, **settings)


def _is_smoothed(to: Replacement, changed: list[_Axis]) -> bool:
    return bool(to.attributes.get("antialias")) and any(axis.where.shrinking > 1 for axis in changed)


def _is_repeated(to: Replacement, axis: _Axis) -> bool:
    """Whether each element is repeated as often, and TVM divides indices by that as integers."""
    factor, rest = divmod(axis.out, axis.size)
    if rest or factor > 1 / (1e-5 * (axis.size + 1)):
        return False
    return np.array_equal(axis.where.nearest(_nearest_mode(to)), np.arange(axis.out) // factor)


def _nearest_mode(to: Replacement) -> str:
    return to.attributes.get("nearest_mode", "round_prefer_floor")


def _nearest(to: Replacement, data: str, axis: _Axis) -> str:
    return to.add("Gather", data, to.constant(axis.where.nearest(_nearest_mode(to))), axis=axis.index)


def _weighted(to: Replacement, data: str, axis: _Axis, mode: str) -> str:
    indices, weights = taps(
        axis.where,
        mode,
        cubic_coeff_a=to.attributes.get("cubic_coeff_a", -0.75),
        antialias=bool(to.attributes.get("antialias")),
        exclude_outside=bool(to.attributes.get("exclude_outside")),
    )
    behind = len(to.shape(to.input(0))) - axis.index - 1
    weights = weights.astype(to.dtype(to.input(0)))
    if indices.shape[1] > _MOST_ADDED:
        gathered = to.add("Gather", data, to.constant(indices), axis=axis.index)
        product = to.add("Mul", gathered, to.constant(weights.reshape(*weights.shape, *[1] * behind)))
        return to.add("ReduceSum", product, to.constant(np.array([axis.index + 1])), keepdims=0)
    products = []
    for index, weight in zip(indices.T, weights.T, strict=True):
        gathered = to.add("Gather", data, to.constant(index), axis=axis.index)
        products.append(to.add("Mul", gathered, to.constant(weight.reshape(-1, *[1] * behind))))
    return reduce(lambda total, product: to.add("Add", total, product), products)


def _extrapolated(to: Replacement, data: str, axis: _Axis) -> str:
    """`data` with ``extrapolation_value`` wherever the position is outside the axis."""
    behind = len(to.shape(to.input(0))) - axis.index - 1
    value = np.array(to.attributes.get("extrapolation_value", 0.0), to.dtype(to.input(0)))
    outside = axis.where.outside().reshape(-1, *[1] * behind)
    return to.add("Where", to.constant(outside), to.constant(value), data)


REWRITES: dict[str, Rewrite] = {"Resize": rewrite_resize}
