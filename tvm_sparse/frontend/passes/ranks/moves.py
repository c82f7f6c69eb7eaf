"""What moves the elements of maps around a convolution, as functions of loops."""

import math
from collections.abc import Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tvm_sparse.frontend.passes.ranks.phases import Axis, Phases


def with_depths(maps: te.Tensor, axis: Axis, groups: int) -> te.Tensor:
    """`maps` (N * D, C, H, W) as (N * outputs, taps * C, H, W): what a kernel reads in depth are channels.

    In each of the groups of channels those of a tap lie together.
    """
    images, channels, h, w = (int(size) for size in maps.shape)
    group = channels // groups

    def at(i: tirx.Var, c: tirx.Var, y: tirx.Var, x: tirx.Var) -> Expr:
        tap = c // group % axis.taps
        depth = i % axis.outputs * axis.stride + tap * axis.dilation - axis.before
        value = maps[i // axis.outputs * axis.size + depth, c // (axis.taps * group) * group + c % group, y, x]
        if not axis.before and not axis.after:
            return value
        return tirx.if_then_else(tirx.all(depth >= 0, depth < axis.size), value, tirx.const(0, "float32"))

    shape = (images // axis.size * axis.outputs, axis.taps * channels, h, w)
    return te.compute(shape, at, name="with_depths")


def interleaved(maps: te.Tensor, phases: Sequence[Phases], groups: int) -> te.Tensor:
    """The outputs (N * D, K, H, W) of a transposed convolution, of `maps` (N * depths, phases * K, rows, columns)."""
    images, channels = (int(size) for size in maps.shape[:2])
    depth, height, width = phases

    def at(i: tirx.Var, k: tirx.Var, y: tirx.Var, x: tirx.Var) -> Expr:
        numbers, phase = [], tirx.const(0, k.ty.dtype)
        for place, each in ((i % depth.outputs, depth), (y, height), (x, width)):
            shifted = place + each.shift
            phase = phase * each.stride + shifted % each.stride
            numbers.append(shifted // each.stride)
        channel = (k // group * count + phase) * group + k % group
        return maps[i // depth.outputs * depth.axis.outputs + numbers[0], channel, numbers[1], numbers[2]]

    count = math.prod(each.stride for each in phases)
    filters = channels // count
    group = filters // groups
    shape = (images // depth.axis.outputs * depth.outputs, filters, height.outputs, width.outputs)
    return te.compute(shape, at, name="interleaved")
