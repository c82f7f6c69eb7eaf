"""Weights as data on CPUs: tiles of filters that share their zeros by vectors of pixels along output rows.

Escort's direct sparse convolution (Park et al. 2017, Chen 2018) in blocks: the input is packed so that one tap of a
whole group of output rows is one contiguous run of floats (`conv.conv2d_rows.RowGroups`). For each tile of filters and
of pixel vectors, each position at which the filters are not zero loads the pixels once at its offset, and multiplies
them by one weight a filter; the tile's sums stay in registers. One filter a tile serves any zeros (`csr_cpu`), several
those of vectors (`vector_cpu`), with as many times fewer loads and offsets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue, padded
from tvm_sparse.conv.conv2d_rows import RowGroups
from tvm_sparse.conv.spec import MAX_ELEMENTS, ConvSpec
from tvm_sparse.scheduling.csr import csr_function, epilogue_reads, new_buffer, stretch, whole
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, NotApplicable, divisors, nearest


@dataclass(frozen=True)
class DataTile:
    """A register tile of `filters` by `vectors` of pixels, for `channels` input channels of a group at a time."""

    filters: int
    vectors: int
    channels: int

    def __str__(self) -> str:
        return f"tile{self.filters}x{self.vectors}-channels{self.channels}"


def packed_channel(spec: ConvSpec, layout: RowGroups) -> int:
    """Floats of a packed channel."""
    return spec.h * spec.w if layout.reads_input(spec) else math.prod(layout.packed_shape(spec))


def require_short(spec: ConvSpec, layout: RowGroups) -> None:
    """Raise NotApplicable where 32-bit indices do not reach all of the packed input or the output."""
    longest = max(spec.n * spec.c * packed_channel(spec, layout), spec.n * spec.k * spec.out_h * layout.row_stride)
    if longest > MAX_ELEMENTS:
        raise NotApplicable(f"a buffer of {longest} floats exceeds 32-bit indices")


class DataRowSpace(HandMadeSpace):
    """The space of one layout of the packed input and one tile.

    Its kernels take the weight as `values` (positions, filters) row after row, their `offsets` and the start of each
    row in `rows`: of all tiles of filters the positions in the first `channels`, then in the next.
    """

    def __init__(self, name: str, variant: str, spec: ConvSpec, nnz: int, layout: RowGroups, tile: DataTile):
        self.spec, self.layout, self.tile = spec, layout, tile
        self.blocks, self.steps = spec.k // tile.filters, spec.c // spec.groups // tile.channels
        row_ends = self.blocks * self.steps + 1
        func = csr_function(spec, nnz, self._write, rows=row_ends, shared=tile.filters)
        super().__init__(name, variant, func, fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        tile = self.tile
        # Filters of a tile share their zeros: the first one's stand for all.
        _, offsets, rows = stretch(weight[:: tile.filters], _places(self.spec, self.layout))
        block, c, r, s = np.nonzero(weight[:: tile.filters])
        values = weight.reshape(self.blocks, tile.filters, *weight.shape[1:])[block, :, c, r, s]
        row = c // tile.channels * self.blocks + block
        order = np.argsort(row, kind="stable")
        rows = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=self.blocks * self.steps))]).astype(np.int32)
        # One element stays where there is no non-zero.
        if not order.size:
            return np.zeros(tile.filters, np.float32), offsets, rows
        return values[order].astype(np.float32).ravel(), offsets[order], rows

    def apply(self, sch: Schedule, choose: Choose) -> None:
        spec, layout, tile = self.spec, self.layout, self.tile
        filters = [tile.filters * each for each in divisors(self.blocks, 32)]
        blocks = divisors(spec.out_h // layout.rows)
        filters_block = choose.one_of("filters", filters, nearest(filters, 8 if tile.filters == 1 else 64))
        rows_block = choose.one_of("row_groups", blocks, nearest(blocks, 16 / layout.rows))
        conv = sch.get_sblock("conv")
        n, k, y, x = sch.get_loops(sch.get_sblock("out"))
        k_outer, k_inner = sch.split(k, [None, filters_block])
        block, group, row = sch.split(y, [None, rows_block, layout.rows])
        sch.reorder(n, k_outer, block, group, k_inner, row, x)
        if tile.filters == 1:
            sch.compute_at(conv, k_inner, preserve_unit_loops=True)
        else:
            sch.compute_at(conv, block, preserve_unit_loops=True)
            *_, step, filter_tile, row_group, vector = sch.get_loops(conv)
            # What the filters of a block read of a vector stays in the level-1 cache.
            sch.reorder(step, row_group, vector, filter_tile)
        sch.parallel(sch.fuse(n, k_outer, block))
        if not layout.reads_input(spec):
            sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock("pack"))[:2]))

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        """The body of the function: stages ``pack``, unless the input can be read as it is, ``conv`` and ``out``."""
        spec, layout = self.spec, self.layout
        packed = None if layout.reads_input(spec) else _write_pack(spec, layout, arguments["x"])
        groups, pixels = spec.out_h // layout.rows, layout.vectors * layout.lanes
        sums = new_buffer("sums", (spec.n, spec.k, groups, pixels))
        extents = (spec.n, self.steps, self.blocks, groups, layout.vectors // self.tile.vectors)
        if self.steps == 1:
            with T.grid(*extents[:1], *extents[2:]) as loops, T.sblock("conv"):
                n, *place = T.axis.remap("SSSS", loops)
                self._write_conv(arguments, packed, sums, [n, 0, *place])
        else:
            with T.grid(*extents) as loops, T.sblock("conv"):
                self._write_conv(arguments, packed, sums, T.axis.remap("SRSSS", loops))
        with T.grid(*spec.output_shape) as loops, T.sblock("out"):
            index = T.axis.remap("SSSS", loops)
            n, k, row, column = index
            flat = tirx.floormod(row, layout.rows) * layout.row_stride + column
            value = sums[n, k, tirx.floordiv(row, layout.rows), flat]
            T.reads(value, *epilogue_reads(spec, arguments, index))
            T.writes(arguments["y"][tuple(index)])
            T.buffer_store(arguments["y"], epilogue(spec, arguments, value, index), index)

    def _write_conv(self, arguments: dict[str, tirx.Var], packed: tirx.Var | None, sums: tirx.Var, index: list) -> None:
        """One step over input channels of one tile: of all of its sums where there is one step, else added to them."""
        tile, lanes = self.tile, self.layout.lanes
        x, values, offsets, rows = (arguments[name] for name in ("x", "values", "offsets", "rows"))
        n, step, block, group, vector = index
        row = block if self.steps == 1 else step * self.blocks + block
        first, wide = vector * (tile.vectors * lanes), tile.vectors * lanes
        source = x if packed is None else packed
        T.reads(whole(source, n), whole(values), whole(offsets), rows[row : row + 2])
        filters = slice(block * tile.filters, (block + 1) * tile.filters)
        T.writes(sums[n, filters, group, first : first + wide])
        zero = tirx.const(0.0, self.spec.dtype)

        def each(write: Callable[[int, tirx.Expr, tirx.Expr], None]) -> None:
            """`write` each vector of the tile: its filter, where it lies in `acc`, and its pixels."""
            for f in range(tile.filters):
                for i in range(tile.vectors):
                    with T.vectorized(lanes) as lane:
                        write(f, (f * tile.vectors + i) * lanes + lane, i * lanes + lane)

        def at(f: int, pixel: tirx.Expr) -> list:
            return [n, block * tile.filters + f, group, first + pixel]

        if self.steps > 1:
            with T.init():
                each(lambda f, _, pixel: T.buffer_store(sums, zero, at(f, pixel)))
        acc = new_buffer("acc", (tile.filters * wide,), "local")
        start = (lambda f, pixel: zero) if self.steps == 1 else (lambda f, pixel: sums[tuple(at(f, pixel))])
        each(lambda f, place, pixel: T.buffer_store(acc, start(f, pixel), [place]))
        with T.serial(rows[row], rows[row + 1]) as e:

            def product(f: int, pixel: tirx.Expr) -> tirx.Expr:
                place = offsets[e] + group * (self.layout.rows * self.layout.row_stride) + first + pixel
                # Read in place, an image lies in memory as the packed one would: the address is the same.
                value = x[n, 0, 0, place] if packed is None else packed[n, place]
                return values[e * tile.filters + f if tile.filters > 1 else e] * value

            each(lambda f, place, pixel: T.buffer_store(acc, acc[place] + product(f, pixel), [place]))
        each(lambda f, place, pixel: T.buffer_store(sums, acc[place], at(f, pixel)))


def _places(spec: ConvSpec, layout: RowGroups) -> np.ndarray:
    """Where taps (C, R, S) lie in a packed image, relative to the output pixel."""
    _, phases_x, height, width = layout.packed_shape(spec)
    c, r, s = np.ogrid[: spec.c, : spec.r, : spec.s]
    (rows, phase_y), (columns, phase_x) = (
        np.divmod(tap * dilation, stride)
        for tap, dilation, stride in zip((r, s), spec.dilation, spec.stride, strict=True)
    )
    phase = phase_y * phases_x + phase_x
    return c * packed_channel(spec, layout) + (phase * height + rows) * width + columns


def _write_pack(spec: ConvSpec, layout: RowGroups, x: tirx.Var) -> tirx.Var:
    phases_y, phases_x, height, width = layout.packed_shape(spec)
    packed = new_buffer("packed", (spec.n, spec.c * packed_channel(spec, layout)))
    with T.grid(spec.n, spec.c, phases_y, phases_x, height, width) as loops, T.sblock("pack"):
        n, c, phase_y, phase_x, row, column = T.axis.remap("SSSSSS", loops)
        place = ((c * phases_y + phase_y) * phases_x + phase_x) * (height * width) + row * width + column
        T.reads(whole(x, n, c))
        T.writes(packed[n, place])
        y, x_ = row * spec.stride[0] + phase_y, column * spec.stride[1] + phase_x
        T.buffer_store(packed, padded(spec, x, n, c, y, x_), [n, place])
    return packed
