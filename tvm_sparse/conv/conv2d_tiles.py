"""TE compute in 2-D output tiles, for thread blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import te, tirx

from tvm_sparse.conv.conv2d import (
    WEIGHT,
    arguments_of,
    channel_of,
    epilogue,
    prim_func,
    reduce_axes,
)
from tvm_sparse.conv.input_footprint import lattice
from tvm_sparse.conv.spec import ConvSpec


@dataclass(frozen=True)
class Tiles:
    """How `conv2d_tiles` cuts the output for thread blocks.

    The output is computed on `rows` rows, OH or more, and in tiles of `columns` columns; what lies outside is dropped.
    """

    rows: int
    columns: int

    def count(self, spec: ConvSpec) -> int:
        """Tiles side by side."""
        return -(-spec.out_w // self.columns)

    def lanes(self, spec: ConvSpec) -> int:
        """Floats that are copied at once, 4, 2 or 1: they never straddle a tile, a row or its padding.

        One where the taps skip columns throughout (a 1x1 kernel with stride 2): only what is read is copied.
        """
        read = lattice(spec)
        if read.step[1] > 1:
            return 1
        step = self.columns * read.stride[1] if self.count(spec) > 1 else 4
        span = (self.columns - 1) * read.stride[1] + (spec.s - 1) * read.dilation[1] + 1
        return next(lanes for lanes in (4, 2, 1) if spec.w % lanes == 0 and step % lanes == 0 and span >= lanes)

    def lead(self, spec: ConvSpec) -> int:
        """Columns before a tile's first that are copied with it, so that copies are aligned."""
        return -spec.padding[1] % self.lanes(spec)

    def width(self, spec: ConvSpec) -> int:
        """Columns of the lattice that a tile needs, `lead` included, rounded up to whole copies."""
        lanes, read = self.lanes(spec), lattice(spec)
        needed = self.lead(spec) + (self.columns - 1) * read.stride[1] + (spec.s - 1) * read.dilation[1] + 1
        return -(-needed // lanes) * lanes


def conv2d_tiles(spec: ConvSpec, tiles: Tiles) -> tirx.PrimFunc:
    """The form whose input is staged tile by tile; arguments as `conv2d`.

    ``pack`` has axes (n, c, tile, row, group of lanes, lane); its rows and columns are those of the `lattice`, and
    columns that neighbouring tiles share are there once for each. ``conv`` has axes (n, k, row, column), whole tiles of
    columns, and no condition on any of them.
    """
    arguments, read = arguments_of(spec), lattice(spec)
    (st_h, st_w), (dil_h, dil_w) = read.stride, read.dilation
    top, left, count, lanes = spec.padding[0], spec.padding[1], tiles.count(spec), tiles.lanes(spec)
    height, copies = (tiles.rows - 1) * st_h + (spec.r - 1) * dil_h + 1, tiles.width(spec) // lanes
    # In units of copies: where tile 0 starts, and how far apart tiles are.
    start, step = -(left + tiles.lead(spec)) // lanes, tiles.columns * st_w // lanes

    def pack_at(
        n: tirx.Expr, c: tirx.Expr, tile: tirx.Expr, row: tirx.Expr, copy: tirx.Expr, lane: tirx.Expr
    ) -> tirx.Expr:
        y, column = row * read.step[0] - top, ((tile * step if count > 1 else 0) + copy) * read.step[1] + start
        last = ((count - 1) * step + copies - 1) * read.step[1] + start
        conditions = [y >= 0] if top else []
        conditions += [y < spec.h] if (height - 1) * read.step[0] - top >= spec.h else []
        conditions += [column >= 0] if start else []
        conditions += [column < spec.w // lanes] if last >= spec.w // lanes else []
        value = arguments["x"][n, c, y, column * lanes + lane]
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0.0, spec.dtype)) if conditions else value

    packed = te.compute((spec.n, spec.c, count, height, copies, lanes), pack_at, name="pack")
    c, r, s = reduce_axes(spec)
    channels, filters = spec.weight_shape[1], spec.k // spec.groups

    def conv_at(n: tirx.Expr, k: tirx.Expr, row: tirx.Expr, x_: tirx.Expr) -> tirx.Expr:
        tile, column = tirx.floordiv(x_, tiles.columns), tirx.floormod(x_, tiles.columns)
        flat = column * st_w + s * dil_w + tiles.lead(spec)
        copy, lane = tirx.floordiv(flat, lanes), tirx.floormod(flat, lanes)
        value = packed[n, channel_of(k, filters, channels, c), tile, row * st_h + r * dil_h, copy, lane]
        return te.sum(value * arguments[WEIGHT][k, c, r, s], axis=[c, r, s])

    conv = te.compute((spec.n, spec.k, tiles.rows, count * tiles.columns), conv_at, name="conv")
    out = te.compute(spec.output_shape, lambda *i: epilogue(spec, arguments, conv[i], i), name="out")
    return prim_func(arguments, out)
