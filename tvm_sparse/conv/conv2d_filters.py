"""TE compute with vectors of filters: of each input element one tap of many filters is computed at once.

Vectors along output rows (`conv2d_rows`) compute pixels that nobody reads where maps are small: 64 for 49 on maps of
7x7, 16 for 14 on rows of 14. Vectors of filters are full on any map, and strides cost nothing.
"""

import numpy as np
from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, epilogue, padded, prim_func, reading_all_of, reduce_axes
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec


def is_packed(spec: ConvSpec, columns: int) -> bool:
    """Whether `conv2d_filters` has a stage ``pack``: with padding, where it reads beyond the input's rows, and
    of half precision, which it widens."""
    return any(spec.padding) or columns > spec.out_w or spec.dtype != FLOAT32


def conv2d_filters(spec: ConvSpec, filters: int, columns: int) -> tirx.PrimFunc:
    """The form of a convolution of one group with blocks of `filters`; arguments as `conv2d`, but for the weight.

    That is (K / filters, C, R, S, filters), as `filter_blocks` makes it. ``conv`` has axes (n, block, y, x, filter),
    with x up to `columns`, the output's width or more.
    """
    arguments = arguments_of(spec)
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    x = packed = arguments["x"]
    blocks = -(-spec.k // filters)
    shape = (blocks, spec.c, spec.r, spec.s, filters)
    weight = arguments[WEIGHT] = te.placeholder(shape, FLOAT32, name=WEIGHT)
    if is_packed(spec, columns):
        n, c, height, width = spec.padded_shape
        width = max(width, (columns - 1) * st_w + (spec.s - 1) * dil_w + 1)
        packed = te.compute((n, c, height, width), lambda n, c, y, x_: padded(spec, x, n, c, y, x_), name="pack")
    c, r, s = reduce_axes(spec)
    conv = te.compute(
        (spec.n, blocks, spec.out_h, columns, filters),
        lambda n, block, y, x_, lane: te.sum(
            packed[n, c, y * st_h + r * dil_h, x_ * st_w + s * dil_w] * weight[block, c, r, s, lane], axis=[c, r, s]
        ),
        name="conv",
    )

    def out_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        value = conv[n, tirx.floordiv(k, filters), y, x, tirx.floormod(k, filters)]
        return epilogue(spec, arguments, value, (n, k, y, x))

    func = prim_func(arguments, te.compute(spec.output_shape, out_at, name="out"))
    # Tiles are whole: also those that go beyond the last filter or column.
    return reading_all_of(func, "out", "conv", axes=2)


def filter_blocks(weight: np.ndarray, filters: int) -> np.ndarray:
    """A weight (K, C, R, S) as (K / filters, C, R, S, filters), zeros behind its end."""
    blocks = -(-len(weight) // filters)
    whole = np.zeros((blocks * filters, *weight.shape[1:]), weight.dtype)
    whole[: len(weight)] = weight
    return np.ascontiguousarray(whole.reshape(blocks, filters, *weight.shape[1:]).transpose(0, 2, 3, 4, 1))
