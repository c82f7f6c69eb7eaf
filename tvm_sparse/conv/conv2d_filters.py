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
class Blocks:
    """How a convolution is cut: the weight into `channels` by `filters`, the output's rows into `rows`, a divisor.

    Of the pixels of so many rows, one after the other, tiles of `pixels` are computed at once. With `packs` what they
    read is copied first.
    """

    filters: int
    channels: int
    rows: int
    pixels: int
    packs: bool

    def count(self, spec: ConvSpec) -> int:
        """Blocks of filters."""
        return -(-spec.k // self.filters)

    def weight_shape(self, spec: ConvSpec) -> tuple[int, ...]:
        """(C / channels, K / filters, R, S, channels, filters)."""
        return (spec.c // self.channels, self.count(spec), spec.r, spec.s, self.channels, self.filters)

    def columns(self, spec: ConvSpec) -> int:
        """Pixels that the tiles of these rows compute: the last tile may go beyond them."""
        return -(-self.rows * spec.out_w // self.pixels) * self.pixels


def needs_packing(spec: ConvSpec) -> bool:
    """Whether what tiles read must be copied, or had better be whatever the threads.

    With padding, of half precision, which it widens, where one tap skips pixels, and where channels would displace each
    other from a level-1 cache, as they lie a multiple of four of its 64 sets apart.
    """
    needed = any(spec.padding) or spec.dtype != FLOAT32 or _skipped(spec) != (1, 1)
    return needed or spec.h * spec.w % 64 == 0


def _skipped(spec: ConvSpec) -> tuple[int, int]:
    """The strides with which ``pack`` reads the input: all of a stride where there is one tap."""
    return spec.stride if spec.r * spec.s == 1 else (1, 1)


def conv2d_filters(spec: ConvSpec, cut: Blocks) -> tirx.PrimFunc:
    """The form of a convolution of one group in blocks; arguments as `conv2d`, but for the weight.

    That is as `filter_blocks` makes it. ``conv`` has axes (n, block of rows, block of filters, pixel, filter); pixels
    beyond the last repeat it.
    """
    arguments = arguments_of(spec)
    (st_h, st_w), (dil_h, dil_w), (skip_h, skip_w) = spec.stride, spec.dilation, _skipped(spec)
    x = packed = arguments["x"]
    filters, rows, last = cut.filters, cut.rows, cut.rows * spec.out_w - 1
    weight = arguments[WEIGHT] = te.placeholder(cut.weight_shape(spec), FLOAT32, name=WEIGHT)
    if cut.packs:
        n, c, height, width = spec.padded_shape
        packed = te.compute(
            (n, c, -(-height // skip_h), -(-width // skip_w)),
            lambda n, c, y, x_: padded(spec, x, n, c, y * skip_h, x_ * skip_w),
            name="pack",
        )
    c, r, s = reduce_axes(spec)

    def conv_at(n: tirx.Expr, group: tirx.Expr, block: tirx.Expr, pixel: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        pixel = tirx.min(pixel, last) if cut.columns(spec) > last + 1 else pixel
        y, x_ = group * rows + tirx.floordiv(pixel, spec.out_w), tirx.floormod(pixel, spec.out_w)
        value = packed[n, c, y * (st_h // skip_h) + r * dil_h, x_ * (st_w // skip_w) + s * dil_w]
        outer, inner = tirx.floordiv(c, cut.channels), tirx.floormod(c, cut.channels)
        return te.sum(value * weight[outer, block, r, s, inner, lane], axis=[c, r, s])

    conv_shape = (spec.n, spec.out_h // rows, cut.count(spec), cut.columns(spec), filters)
    conv = te.compute(conv_shape, conv_at, name="conv")

    def out_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        block, lane = tirx.floordiv(k, filters), tirx.floormod(k, filters)
        pixel = tirx.floormod(y, rows) * spec.out_w + x
        value = conv[n, tirx.floordiv(y, rows), block, pixel, lane]
        return epilogue(spec, arguments, value, (n, k, y, x))

    func = prim_func(arguments, te.compute(spec.output_shape, out_at, name="out"))
    # Tiles are whole: also those that go beyond the last filter or pixel.
    return reading_all_of(func, "out", "conv", axes=2)


def filter_blocks(weight: np.ndarray, cut: Blocks) -> np.ndarray:
    """A weight (K, C, R, S) in blocks (C / channels, K / filters, R, S, channels, filters), zeros behind its end."""
    k, c, *taps = weight.shape
    blocks = -(-k // cut.filters)
    whole = np.zeros((blocks * cut.filters, c, *taps), weight.dtype)
    whole[:k] = weight
    split = whole.reshape(blocks, cut.filters, c // cut.channels, cut.channels, *taps)
    return np.ascontiguousarray(split.transpose(2, 0, 4, 5, 3, 1))
