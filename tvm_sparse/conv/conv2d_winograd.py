"""TE compute of 3x3 convolutions by Winograd's F(2x2, 3x3): 16 products for four outputs instead of 36.

Lavin and Gray, Fast algorithms for convolutional neural networks, 2016: a tile d of 4x4 inputs and a filter g give 2x2
outputs ``At [(G g Gt) * (Bt d B)] A``. Of a position of the 16, the products summed over channels are a product of
matrices. Inputs and outputs are transformed by additions, the weight as it is packed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, padded, prim_func, reading_all_of
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import Blocked, Layouts, blocked_arguments, output, padded_blocks, views
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.winograd_filter import READ, TAPS, TILE, transformed


@dataclass(frozen=True)
class TileBlocks:
    """How a convolution is cut: the weight into `channels` by `filters`, the output into `rows` of tiles, a divisor.

    Of the tiles of so many rows, one after the other, `tiles` are computed at once.
    """

    filters: int
    channels: int
    rows: int
    tiles: int

    def count(self, spec: ConvSpec) -> int:
        """Blocks of filters."""
        return -(-spec.k // self.filters)

    def weight_shape(self, spec: ConvSpec) -> tuple[int, ...]:
        """(K / filters, 4, 4, C, filters)."""
        return (self.count(spec), READ, READ, spec.c, self.filters)

    def columns(self, spec: ConvSpec) -> int:
        """Tiles that are computed for these rows: the last ones may go beyond them."""
        return -(-self.rows * across(spec) // self.tiles) * self.tiles


def down(spec: ConvSpec) -> int:
    """Rows of tiles."""
    return -(-spec.out_h // TILE)


def across(spec: ConvSpec) -> int:
    """Tiles of a row."""
    return -(-spec.out_w // TILE)


def is_served(spec: ConvSpec) -> bool:
    """Whether a convolution has 3x3 taps beside each other, one group, no stride, and float32 tensors."""
    is_plain = spec.stride == (1, 1) and spec.dilation == (1, 1) and spec.groups == 1
    return is_plain and (spec.r, spec.s) == (TAPS, TAPS) and spec.dtype == FLOAT32


def conv2d_winograd(spec: ConvSpec, cut: TileBlocks, layouts: Layouts, channels: int) -> tirx.PrimFunc:
    """The form of a convolution that `is_served`, of tensors in `layouts`; arguments as `conv2d`, but for the weight.

    That is as `transformed_weight` makes it. Stages between ``pack``, which has blocks of so many `channels`, and
    ``out`` are ``tiles`` of the input (n, block of rows, 4, 4, block of channels, tile, channel), their products
    ``conv`` (n, block of rows, block of filters, 4, 4, tile, filter), and ``sums`` (n, block of rows, block of filters,
    row, tile of it, 2, 2, filter), or (..., y, x, filter) where the output does not lie in blocks.
    """
    arguments = blocked_arguments(spec, layouts)
    weight = arguments[WEIGHT] = te.placeholder(cut.weight_shape(spec), FLOAT32, name=WEIGHT)
    columns, groups, count = across(spec), down(spec) // cut.rows, cut.columns(spec)
    pack = _packed(spec, layouts, views(layouts, arguments)["x"], channels)

    def tile_at(
        n: tirx.Expr, group: tirx.Expr, i: tirx.Expr, j: tirx.Expr, block: tirx.Expr, tile: tirx.Expr, c: tirx.Expr
    ) -> tirx.Expr:
        row = tirx.floordiv(tile, columns)
        # What lies behind the last tile repeats some.
        row = row if count == cut.rows * columns else tirx.min(row, cut.rows - 1)
        y, x = (group * cut.rows + row) * TILE, tirx.floormod(tile, columns) * TILE
        return of_input(i, lambda a: of_input(j, lambda b: pack[n, block, y + a, x + b, c]))

    tiles = te.compute((spec.n, groups, READ, READ, -(-spec.c // channels), count, channels), tile_at, name="tiles")
    c = te.reduce_axis((0, spec.c), "c")

    def conv_at(
        n: tirx.Expr, group: tirx.Expr, block: tirx.Expr, i: tirx.Expr, j: tirx.Expr, tile: tirx.Expr, lane: tirx.Expr
    ) -> tirx.Expr:
        value = tiles[n, group, i, j, tirx.floordiv(c, channels), tile, tirx.floormod(c, channels)]
        return te.sum(value * weight[block, i, j, c, lane], axis=c)

    conv = te.compute((spec.n, groups, cut.count(spec), READ, READ, count, cut.filters), conv_at, name="conv")
    value_at = _sums(spec, cut, conv, are_tiles=layouts.y)
    func = prim_func(arguments, output(spec, layouts, arguments, value_at))
    # Tiles are whole, and so are rows and blocks of channels.
    for reader, stage, axes in (("out", "sums", 3), ("sums", "conv", 4), ("conv", "tiles", 1), ("tiles", "pack", 1)):
        func = reading_all_of(func, reader, stage, axes)
    return func


def _packed(spec: ConvSpec, layouts: Layouts, x: te.Tensor | Blocked, channels: int) -> te.Tensor:
    """The stage ``pack``, behind a stage ``padding`` where the input does not lie in blocks."""
    height, width = TILE * down(spec) + READ - TILE, TILE * across(spec) + READ - TILE
    if layouts.x:
        return padded_blocks(spec, x, channels, height, width)
    blocks, last = -(-spec.c // channels), spec.c - 1

    def padding_at(n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x_: tirx.Expr) -> tirx.Expr:
        # What fills the last block is not read.
        return padded(spec, x, n, c if spec.c % channels == 0 else tirx.min(c, last), y, x_)

    padding = te.compute((spec.n, blocks * channels, height, width), padding_at, name="padding")
    return te.compute(
        (spec.n, blocks, height, width, channels),
        lambda n, block, y, x_, lane: padding[n, block * channels + lane, y, x_],
        name="pack",
    )


def _sums(spec: ConvSpec, cut: TileBlocks, conv: te.Tensor, are_tiles: bool) -> Callable[..., tirx.Expr]:
    """The stage ``sums``, whose pixels lie by tiles or by rows, and what it has at (n, k, y, x)."""
    groups, columns, blocks = down(spec) // cut.rows, across(spec), cut.count(spec)

    def sum_at(n: tirx.Expr, group: tirx.Expr, block: tirx.Expr, *pixel: tirx.Expr) -> tirx.Expr:
        if are_tiles:
            row, column, i, j, lane = pixel
        else:
            y, x, lane = pixel
            (row, i), (column, j) = _place(y), _place(x)
        tile = row * columns + column
        return of_output(i, lambda a: of_output(j, lambda b: conv[n, group, block, a, b, tile, lane]))

    pixels = (cut.rows, columns, TILE, TILE) if are_tiles else (TILE * cut.rows, TILE * columns)
    sums = te.compute((spec.n, groups, blocks, *pixels, cut.filters), sum_at, name="sums")

    def value_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        group, y = tirx.floordiv(y, TILE * cut.rows), tirx.floormod(y, TILE * cut.rows)
        (row, i), (column, j) = _place(y), _place(x)
        place = (row, column, i, j) if are_tiles else (y, x)
        index = (n, group, tirx.floordiv(k, cut.filters), *place, tirx.floormod(k, cut.filters))
        return sums[index]

    return value_at


def _place(at: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """Which tile a row or a column is of, and which one of its."""
    return tirx.floordiv(at, TILE), tirx.floormod(at, TILE)


def of_input(turn: tirx.Expr, at: Callable[[int], tirx.Expr]) -> tirx.Expr:
    """Element `turn` of Bt d, of the four elements `at` 0 to 3."""
    return _one_of(turn, (at(0) - at(2), at(1) + at(2), at(2) - at(1), at(1) - at(3)))


def of_output(turn: tirx.Expr, at: Callable[[int], tirx.Expr]) -> tirx.Expr:
    """Element `turn` of At m, of the four elements `at` 0 to 3."""
    return _one_of(turn, (at(0) + at(1) + at(2), at(1) - at(2) - at(3)))


def _one_of(turn: tirx.Expr, ways: tuple[tirx.Expr, ...]) -> tirx.Expr:
    *others, chosen = ways
    for i, other in enumerate(others):
        chosen = tirx.if_then_else(turn == i, other, chosen)
    return chosen


def transformed_weight(weight: np.ndarray, cut: TileBlocks) -> np.ndarray:
    """A weight (K, C, 3, 3) as (K / filters, 4, 4, C, filters), zeros behind its end, each rounded to float32 once."""
    k, c, *_ = weight.shape
    blocks = -(-k // cut.filters)
    whole = np.zeros((blocks * cut.filters, READ, READ, c))
    whole[:k] = transformed(weight)
    split = whole.reshape(blocks, cut.filters, READ, READ, c).transpose(0, 2, 3, 4, 1)
    return np.ascontiguousarray(split, dtype=np.float32)
