"""What moves the elements of maps around a convolution, as functions of loops."""

import math
from collections.abc import Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.frontend.passes.ranks.phases import Phases


def with_depths(maps: te.Tensor, volumes: Volumes, groups: int) -> te.Tensor:
    """`maps` (N * D, C, H, W) as (N * outputs, taps * C, H, W): what a kernel reads in depth are channels.

    In each of the groups of channels those of a tap lie together.
    """
    images, channels, h, w = (int(size) for size in maps.shape)
    group, taps, outputs = channels // groups, volumes.taps, volumes.outputs

    def at(i: tirx.Var, c: tirx.Var, y: tirx.Var, x: tirx.Var) -> Expr:
        place = i % outputs * volumes.stride + c // group % taps * volumes.dilation - volumes.before
        return _map_of(maps, volumes, i // outputs, place, (c // (taps * group) * group + c % group, y, x))

    shape = (images // volumes.size * outputs, taps * channels, h, w)
    return te.compute(shape, at, name="with_depths")


def with_ends(maps: te.Tensor, volumes: Volumes) -> te.Tensor:
    """`maps` (N * D, C, H, W) as those of ``volumes.within``, zeros where there was none."""
    images, *sizes = (int(size) for size in maps.shape)
    size = volumes.within.size

    def at(i: tirx.Var, *rest: tirx.Var) -> Expr:
        return _map_of(maps, volumes, i // size, i % size - volumes.before, rest)

    return te.compute((images // volumes.size * size, *sizes), at, name="with_ends")


def _map_of(maps: te.Tensor, volumes: Volumes, volume: Expr, place: Expr, rest: Sequence[Expr]) -> Expr:
    """An element of a volume's map at `place`, of which there may be none."""
    element = (volume * volumes.size + place, *rest)
    value = maps[element]
    if volumes.within.size == volumes.size:
        return value
    return tirx.if_then_else(tirx.all(place >= 0, place < volumes.size), value, tirx.const(0, "float32"))


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
