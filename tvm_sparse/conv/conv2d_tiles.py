"""TE compute in tiles of rows and columns, for thread blocks.

The padded input is cut into tiles of columns that overlap, each of them aligned, so that shared memory is filled by
wide copies; rows and columns are rounded up to whole tiles.
"""

from dataclasses import dataclass

from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, channel_of, epilogue, input_at, prim_func, reduce_axes, widened
from tvm_sparse.conv.output_tiling import OutputTiling
from tvm_sparse.conv.pooled import pooled_in_warps


@dataclass(frozen=True)
class SpatialTiles(OutputTiling):
    """Tiles of `columns` columns and `rows` rows, OH or more, of one image; what lies outside is dropped."""

    rows: int
    columns: int

    @property
    def variant(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def side_by_side(self) -> int:
        """Tiles of an image."""
        return -(-self.spec.out_w // self.columns)

    @property
    def count(self) -> int:
        return self.spec.n * self.side_by_side

    @property
    def input_rows(self) -> int:
        return self.footprint[0].span(self.rows)

    @property
    def row_pixels(self) -> int:
        return self.columns


def conv2d_tiles(tiles: SpatialTiles, pools: bool = False) -> tirx.PrimFunc:
    """The form whose input is staged tile by tile; arguments as `conv2d.conv2d`.

    ``pack`` has axes (n, c, tile, row, copy, lane); columns that neighbouring tiles share are there once for each.
    ``conv`` has axes (n, k, row, column), whole tiles of columns, and no condition on any of them. With `pools` the
    largest of each 2x2 outputs is written (`pooled`).
    """
    spec, (down, right) = tiles.spec, tiles.footprint
    arguments, count, lanes = arguments_of(spec), tiles.side_by_side, tiles.lanes
    # In units of copies: where tile 0 starts, and how far apart tiles are.
    start, step, top = tiles.first_copy, tiles.columns * right.stride // lanes, spec.padding[0]

    def pack_at(
        n: tirx.Expr, c: tirx.Expr, tile: tirx.Expr, row: tirx.Expr, copy: tirx.Expr, lane: tirx.Expr
    ) -> tirx.Expr:
        y, column = row * down.step - top, ((tile * step if count > 1 else 0) + copy) * right.step + start
        last = ((count - 1) * step + tiles.copies - 1) * right.step + start
        conditions = [y >= 0] if top else []
        conditions += [y < spec.h] if (tiles.input_rows - 1) * down.step - top >= spec.h else []
        conditions += [column >= 0] if start else []
        conditions += [column < spec.w // lanes] if last >= spec.w // lanes else []
        value = input_at(spec, arguments["x"], n, c, y, column * lanes + lane)
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0.0, spec.dtype)) if conditions else value

    packed = te.compute((spec.n, spec.c, count, tiles.input_rows, tiles.copies, lanes), pack_at, name="pack")
    c, r, s = reduce_axes(spec)

    def conv_at(n: tirx.Expr, k: tirx.Expr, row: tirx.Expr, x_: tirx.Expr) -> tirx.Expr:
        tile, column = tirx.floordiv(x_, tiles.columns), tirx.floormod(x_, tiles.columns)
        flat = column * right.stride + s * right.dilation + tiles.lead
        copy, lane = tirx.floordiv(flat, lanes), tirx.floormod(flat, lanes)
        value = packed[n, channel_of(spec, k, c), tile, row * down.stride + r * down.dilation, copy, lane]
        return te.sum(widened(value) * arguments[WEIGHT][k, c, r, s], axis=[c, r, s])

    conv = te.compute((spec.n, spec.k, tiles.rows, count * tiles.columns), conv_at, name="conv")
    if pools:
        return pooled_in_warps(spec, arguments, conv)
    out = te.compute(spec.output_shape, lambda *i: epilogue(spec, arguments, conv[i], i), name="out")
    return prim_func(arguments, out)
