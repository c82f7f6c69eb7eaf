"""TE compute with vectors of filters: of each input element one tap of many filters is computed at once.

Vectors along output rows (`conv2d_rows`) compute pixels that nobody reads where maps are small: 64 for 49 on maps of
7x7, 16 for 14 on rows of 14. Vectors of filters are full on any map, and strides cost nothing.
"""

from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, epilogue, padded, prim_func, reading_all_of, reduce_axes
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec


@dataclass(frozen=True)
class PixelTiles:
    """Output pixels of `rows` rows, a divisor of the output's, one after the other in tiles of `pixels`."""

    rows: int
    pixels: int

    def columns(self, spec: ConvSpec) -> int:
        """Pixels that the tiles of these rows compute: the last tile may go beyond them."""
        return -(-self.rows * spec.out_w // self.pixels) * self.pixels


def is_packed(spec: ConvSpec) -> bool:
    """Whether `conv2d_filters` has a stage ``pack``: with padding, of half precision, which it widens, and where channels
    would displace each other from a level-1 cache, as they lie a multiple of four of its 64 sets apart."""
    return any(spec.padding) or spec.dtype != FLOAT32 or spec.h * spec.w % 64 == 0


def conv2d_filters(spec: ConvSpec, filters: int, tiles: PixelTiles) -> tirx.PrimFunc:
    """The form of a convolution of one group with blocks of `filters`; arguments as `conv2d`, but for the weight.

    That is (K / filters, R, S, C, filters), as `filter_blocks` makes it. ``conv`` has axes (n, rows of `tiles`, block,
    pixel, filter); pixels beyond the last repeat it.
    """
    arguments = arguments_of(spec)
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    x = packed = arguments["x"]
    blocks, last = -(-spec.k // filters), tiles.rows * spec.out_w - 1
    shape = (blocks, spec.r, spec.s, spec.c, filters)
    weight = arguments[WEIGHT] = te.placeholder(shape, FLOAT32, name=WEIGHT)
    if is_packed(spec):
        packed = te.compute(spec.padded_shape, lambda n, c, y, x_: padded(spec, x, n, c, y, x_), name="pack")
    c, r, s = reduce_axes(spec)

    def conv_at(n: tirx.Expr, group: tirx.Expr, block: tirx.Expr, pixel: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        pixel = tirx.min(pixel, last) if tiles.columns(spec) > last + 1 else pixel
        y, x_ = group * tiles.rows + tirx.floordiv(pixel, spec.out_w), tirx.floormod(pixel, spec.out_w)
        value = packed[n, c, y * st_h + r * dil_h, x_ * st_w + s * dil_w]
        return te.sum(value * weight[block, r, s, c, lane], axis=[c, r, s])

    conv_shape = (spec.n, spec.out_h // tiles.rows, blocks, tiles.columns(spec), filters)
    conv = te.compute(conv_shape, conv_at, name="conv")

    def out_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        block, lane = tirx.floordiv(k, filters), tirx.floormod(k, filters)
        pixel = tirx.floormod(y, tiles.rows) * spec.out_w + x
        value = conv[n, tirx.floordiv(y, tiles.rows), block, pixel, lane]
        return epilogue(spec, arguments, value, (n, k, y, x))

    func = prim_func(arguments, te.compute(spec.output_shape, out_at, name="out"))
    # Tiles are whole: also those that go beyond the last filter or pixel.
    return reading_all_of(func, "out", "conv", axes=2)


def filter_blocks(weight: np.ndarray, filters: int) -> np.ndarray:
    """A weight (K, C, R, S) as (K / filters, R, S, C, filters), zeros behind its end."""
    blocks = -(-len(weight) // filters)
    whole = np.zeros((blocks * filters, *weight.shape[1:]), weight.dtype)
    whole[: len(weight)] = weight
    return np.ascontiguousarray(whole.reshape(blocks, filters, *weight.shape[1:]).transpose(0, 3, 4, 2, 1))
