"""Leave out the rounding and clipping of what is rounded and clipped already.

A quantised model has it on either side of each operator that only moves codes, such as a max pool.
"""

import math

import tvm
from tvm import relax
from tvm.ir import Expr

from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, rebuild

_MOVING = ("relax.reshape", "relax.strided_slice", "relax.permute_dims")


def fold_rounding(module: tvm.IRModule) -> tvm.IRModule:
    """`module` without what rounds integers, and what clips integers that are within the bounds."""
    # Variables of integers, and what these are between.
    ranges: dict[Expr, tuple[float, float]] = {}
    edits = {}
    for var, value in Graph.of(module).definitions.items():
        if (found := _range(value, ranges)) is None:
            continue
        ranges[var] = found
        if _cuts(value) and ranges.get(value.args[0]) == found:
            edits[var] = [(var, value.args[0])]
    return relax.transform.CanonicalizeBindings()(rebuild(module, edits)) if edits else module


def _range(value: Expr, ranges: dict[Expr, tuple[float, float]]) -> tuple[float, float] | None:
    """What the integers of `value` are between; None where they may be no integers."""
    if is_call(value, "relax.round"):
        return ranges.get(value.args[0], (-math.inf, math.inf))
    if is_call(value, "relax.clip") and value.args[0] in ranges:
        least, most = (float(each.value) for each in value.args[1:])
        first, last = (min(max(each, least), most) for each in ranges[value.args[0]])
        return first, last
    return ranges.get(value.args[0]) if any(is_call(value, each) for each in _MOVING) or is_whole_pool(value) else None


def _cuts(value: Expr) -> bool:
    return is_call(value, "relax.round") or is_call(value, "relax.clip")


def is_whole_pool(value: Expr) -> bool:
    """Whether `value` is a 2-D max pool each of whose windows has pixels of the input, side by side."""
    if not is_call(value, "relax.nn.max_pool2d"):
        return False
    attrs = value.attrs
    is_nchw = attrs.layout == attrs.out_layout == "NCHW"
    is_inside = all(before < size for before, size in zip(attrs.padding, [*attrs.pool_size] * 2, strict=True))
    return is_nchw and is_inside and not attrs.ceil_mode and all(each == 1 for each in attrs.dilation)
