"""TE compute with vectors of filters of convolutions that read or write blocks of channels (`nchwc`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, channel_of, padded, prim_func, reading_all_of, reduce_axes
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.interleaving import ByChannel, Interleaving
from tvm_sparse.conv.nchwc import Blocked, Columns, Layouts, blocked_arguments, output, padded_blocks, views
from tvm_sparse.conv.spec import ConvSpec


def conv2d_nchwc(
    spec: ConvSpec,
    layouts: Layouts,
    weight_shape: Sequence[int],
    packs: bool,
    columns: Columns,
    interleaving: Interleaving | None = None,
) -> tirx.PrimFunc:
    """The form of a convolution whose weight is as `blocked_weight` makes it; tensors in `layouts`.

    Arguments are as `conv2d` has them, but for the weight, which is as `blocked_weight` makes it. ``conv`` has axes
    (n, block of filters, y, x, filter), with so many `columns`, and so has an output in blocks; another has the first
    of them. With `packs` what is read is copied first, with zeros for columns that the output does not have. With
    an `interleaving` filters are in the order of `Interleaving.by_channel`, but the bias is not.
    """
    arguments = blocked_arguments(spec, layouts)
    weight = arguments[WEIGHT] = te.placeholder(weight_shape, FLOAT32, name=WEIGHT)
    (*_, channels, filters), (st_h, st_w), (dil_h, dil_w) = weight_shape, spec.stride, spec.dilation
    read = views(layouts, arguments)["x"]
    pixel = columns.pixel if layouts.y else (lambda x: x)
    if packs:
        width = 0 if layouts.y else (columns.count - 1) * st_w + (spec.s - 1) * dil_w + 1
        read = _packed(spec, layouts, read, width)
    c, r, s = reduce_axes(spec)

    def conv_at(n: tirx.Expr, block: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        value = read[n, channel_of(spec, block * filters, c), y * st_h + r * dil_h, pixel(x) * st_w + s * dil_w]
        outer, inner = tirx.floordiv(c, channels), tirx.floormod(c, channels)
        return te.sum(value * weight[block, outer, r, s, inner, lane], axis=[c, r, s])

    conv = te.compute((spec.n, weight_shape[0], spec.out_h, columns.count, filters), conv_at, name="conv")

    def sum_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        return conv[n, tirx.floordiv(k, filters), y, x, tirx.floormod(k, filters)]

    # Vectors of filters are whole, and so are tiles of columns.
    axes = 1 if layouts.y or columns.count == spec.out_w else 2
    own: dict[str, Any] = dict(arguments)
    if interleaving is not None and spec.bias:
        own["bias"] = ByChannel(arguments["bias"], interleaving, spec.k)
    out = output(spec, layouts, own, sum_at, columns if layouts.y else None)
    return reading_all_of(prim_func(arguments, out), "out", "conv", axes)


def _packed(spec: ConvSpec, layouts: Layouts, x: te.Tensor | Blocked, width: int) -> te.Tensor | Blocked:
    """The input with zeros around it, and so many columns at least."""
    n, c, height, padded_width = spec.padded_shape
    width = max(width, padded_width)
    if layouts.x:
        return Blocked(padded_blocks(spec, x, layouts.channels, height, width))
    return te.compute((n, c, height, width), lambda n, c, y, x_: padded(spec, x, n, c, y, x_), name="pack")


def blocked_weight(weight: np.ndarray, channels: int, filters: int) -> np.ndarray:
    """A weight (K, C / groups, R, S) as (K / filters, C / groups / channels, R, S, channels, filters), as it is used.

    Filters that fill the last block are zero.
    """
    weight = filled(weight, filters)
    k, c, *taps = weight.shape
    split = weight.reshape(k // filters, filters, c // channels, channels, *taps)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1))


def filled(weight: np.ndarray, filters: int) -> np.ndarray:
    """A weight (K, C, R, S) with filters of zeros behind it, so that there are a multiple of so many."""
    return np.pad(weight, [(0, -len(weight) % filters), (0, 0), (0, 0), (0, 0)])
