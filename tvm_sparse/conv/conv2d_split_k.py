"""Convolution over NPQ tiles whose input channels are divided between thread blocks (split-K).

At batch 1 a small map is one or two NPQ tiles, and the only way to more thread blocks is fewer output channels for each
of them. But every block stages all input channels and loads nearly every input, whatever its number of output channels:
256x256x3x3 on 14x14 maps as 128 blocks of two output channels is 34 MB of copies. As 128 blocks of eight output
channels and a quarter of the input channels it is 8 MB, with the same number of multiply-adds a block.
"""

import operator
from functools import reduce

from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, reduce_axes
from tvm_sparse.conv.conv2d_npq import packed_input, product, written_in_place
from tvm_sparse.conv.output_tiling import PixelTiling


def conv2d_split_k(tiles: PixelTiling, splits: int) -> tirx.PrimFunc:
    """The form with `splits` partial sums an output; `splits` divides the input channels of a group.

    Arguments as `conv2d.conv2d`. ``pack`` has axes (tile, c, row, copy, lane), ``conv`` and ``partial``, a copy of it,
    (split, tile, k, pixel of the tile); ``total``, which adds them up in order, and ``out`` (tile, k, pixel).
    """
    spec = tiles.spec
    arguments = arguments_of(spec)
    packed = packed_input(tiles, arguments["x"])
    _, r, s = reduce_axes(spec)
    share = spec.weight_shape[1] // splits
    c = te.reduce_axis((0, share), "c")
    shape = (tiles.count, spec.k, tiles.pixels)

    def conv_at(split: tirx.Expr, *at: tirx.Expr) -> tirx.Expr:
        tap = (split * share + c, r, s)
        return te.sum(product(tiles, packed, arguments[WEIGHT], at, tap), axis=[c, r, s])

    def total_at(*at: tirx.Expr) -> tirx.Expr:
        return reduce(operator.add, (partial(split, *at) for split in range(splits)))

    conv = te.compute((splits, *shape), conv_at, name="conv")
    partial = te.compute((splits, *shape), lambda *at: conv[at], name="partial")
    return written_in_place(tiles, arguments, te.compute(shape, total_at, name="total"))
