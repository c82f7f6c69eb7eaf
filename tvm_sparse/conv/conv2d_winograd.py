"""TE compute of 3x3 convolutions by Winograd's F(2x2, 3x3): 16 products for four outputs instead of 36.

Lavin and Gray, Fast algorithms for convolutional neural networks, 2016: a tile d of 4x4 inputs and a filter g give 2x2
outputs ``At [(G g Gt) * (Bt d B)] A``. Of a position of the 16, the products summed over channels are a product of
matrices. Inputs and outputs are transformed by additions, the weight as it is packed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, epilogue, padded, prim_func, reading_all_of
from tvm_sparse.conv.dtypes import FLOAT32
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


def conv2d_winograd(spec: ConvSpec, cut: TileBlocks) -> tirx.PrimFunc:
    """The form of a convolution that `is_served`; arguments as `conv2d`, but for the weight.

    That is as `transformed_weight` makes it. Stages between ``pack`` and ``out`` are ``tiles`` of the input (n, block
    of rows, c, 4, 4, row, tile), their products ``conv`` (n, block of rows, block of filters, 4, 4, tile, filter), and
    ``sums`` (n, block of rows, block of filters, y, x, filter). Tiles beyond the last repeat it.
    """
    arguments = arguments_of(spec)
    weight = arguments[WEIGHT] = te.placeholder(cut.weight_shape(spec), FLOAT32, name=WEIGHT)
    rows, columns, blocks, groups = cut.rows, across(spec), cut.count(spec), down(spec) // cut.rows
    # Vectors of every other float read one beyond the last.
    height, width = TILE * down(spec) + READ - TILE, TILE * columns + READ - TILE + 1
    pack = te.compute(
        (spec.n, spec.c, height, width), lambda n, c, y, x: padded(spec, arguments["x"], n, c, y, x), name="pack"
    )

    def tile_at(
        n: tirx.Expr, group: tirx.Expr, c: tirx.Expr, i: tirx.Expr, j: tirx.Expr, row: tirx.Expr, tile: tirx.Expr
    ) -> tirx.Expr:
        y, x = (group * rows + row) * TILE, tile * TILE
        return of_input(i, lambda a: of_input(j, lambda b: pack[n, c, y + a, x + b]))

    tiles = te.compute((spec.n, groups, spec.c, READ, READ, rows, columns), tile_at, name="tiles")
    c = te.reduce_axis((0, spec.c), "c")

    def conv_at(
        n: tirx.Expr, group: tirx.Expr, block: tirx.Expr, i: tirx.Expr, j: tirx.Expr, tile: tirx.Expr, lane: tirx.Expr
    ) -> tirx.Expr:
        tile = tirx.min(tile, rows * columns - 1) if cut.columns(spec) > rows * columns else tile
        value = tiles[n, group, c, i, j, tirx.floordiv(tile, columns), tirx.floormod(tile, columns)]
        return te.sum(value * weight[block, i, j, c, lane], axis=c)

    conv = te.compute((spec.n, groups, blocks, READ, READ, cut.columns(spec), cut.filters), conv_at, name="conv")

    def sum_at(
        n: tirx.Expr, group: tirx.Expr, block: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr
    ) -> tirx.Expr:
        (row, i), (column, j) = ((tirx.floordiv(each, TILE), tirx.floormod(each, TILE)) for each in (y, x))
        tile = row * columns + column
        return of_output(i, lambda a: of_output(j, lambda b: conv[n, group, block, a, b, tile, lane]))

    sums = te.compute((spec.n, groups, blocks, TILE * rows, TILE * columns, cut.filters), sum_at, name="sums")

    def out_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        (group, row), (block, lane) = (
            (tirx.floordiv(each, size), tirx.floormod(each, size))
            for each, size in ((y, TILE * rows), (k, cut.filters))
        )
        return epilogue(spec, arguments, sums[n, group, block, row, x, lane], (n, k, y, x))

    func = prim_func(arguments, te.compute(spec.output_shape, out_at, name="out"))
    # Tiles are whole, and so are rows.
    for reader, stage, axes in (("out", "sums", 3), ("sums", "conv", 4), ("tiles", "pack", 1)):
        func = reading_all_of(func, reader, stage, axes)
    return func


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
