"""Weights as data on CPUs: tiles of filters that share their zeros by vectors of pixels along output rows.

Escort's direct sparse convolution (Park et al. 2017, Chen 2018) in blocks: the input is packed so that one tap of a
whole group of output rows is one contiguous run of floats (`conv.conv2d_rows.RowGroups`). For each tile of filters and
of pixel vectors, each position at which the filters are not zero loads the pixels once at its offset, and multiplies
them by one weight a filter; the tile's sums stay in registers. With several filters a tile, whose zeros are in vectors
(`vector_cpu`), there are as many times fewer loads and offsets than with one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue, padded
from tvm_sparse.conv.conv2d_rows import RowGroups
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import MAX_ELEMENTS, ConvSpec
from tvm_sparse.scheduling.cpu.cuts import Threads
from tvm_sparse.scheduling.cpu.rows import store_rows
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, NotApplicable, divisors, nearest
from tvm_sparse.scheduling.tir_writing import by_row, csr_function, epilogue_reads, new_buffer, stretch, whole

# Filters of a task by default.
FILTERS = 64


class Pack(Enum):
    """Where the input is packed: nowhere, where it can be read as it is; first of all; or by groups of rows.

    What a group of rows reads stays in the level-2 cache for all filters, and is packed with the rows that the next
    group reads too.
    """

    DIRECT = "direct"
    ROOT = "root"
    GROUP = "group"


class Order(IntEnum):
    """What passes by while the other stays in the level-1 cache: all pixels of a group of rows, or all filters."""

    PIXELS_INSIDE = 0
    FILTERS_INSIDE = 1


@dataclass(frozen=True)
class DataTile:
    """A register tile of `filters` by `vectors` of pixels, for `channels` input channels of a group at a time."""

    filters: int
    vectors: int
    channels: int

    def __str__(self) -> str:
        return f"tile{self.filters}x{self.vectors}-channels{self.channels}"


@dataclass(frozen=True)
class PackedRows:
    """How the input lies for a kernel: images of `parts`, one a group of rows or one in all, of packed channels."""

    spec: ConvSpec
    layout: RowGroups
    pack: Pack

    def __str__(self) -> str:
        return f"rows{self.layout.rows}x{self.layout.row_stride}"

    @property
    def parts(self) -> int:
        """Groups of rows that are packed by themselves."""
        return self.spec.out_h // self.layout.rows if self.pack is Pack.GROUP else 1

    @property
    def channel_shape(self) -> tuple[int, int, int, int]:
        """(phases of rows, phases of columns, rows, columns) of a packed channel."""
        return self.layout.packed_shape(self.spec, 1 if self.pack is Pack.GROUP else None)

    @property
    def channel(self) -> int:
        """Floats of a packed channel."""
        return self.spec.h * self.spec.w if self.pack is Pack.DIRECT else math.prod(self.channel_shape)

    @property
    def group_step(self) -> int:
        """Floats from a group's first pixel to the next one's, where they lie in one part."""
        return 0 if self.pack is Pack.GROUP else self.layout.rows * self.layout.row_stride

    def places(self) -> np.ndarray:
        """Where taps (C, R, S) lie in a part, relative to the output pixel."""
        spec, (_, phases_x, height, width) = self.spec, self.channel_shape
        c, r, s = np.ogrid[: spec.c, : spec.r, : spec.s]
        (rows, phase_y), (columns, phase_x) = (
            np.divmod(tap * dilation, stride)
            for tap, dilation, stride in zip((r, s), spec.dilation, spec.stride, strict=True)
        )
        phase = phase_y * phases_x + phase_x
        return c * self.channel + (phase * height + rows) * width + columns

    def require_short(self) -> None:
        """Raise NotApplicable where 32-bit indices do not reach all of the packed input or the output."""
        spec = self.spec
        longest = spec.n * max(spec.c * self.parts * self.channel, spec.k * spec.out_h * self.layout.row_stride)
        if longest > MAX_ELEMENTS:
            raise NotApplicable(f"a buffer of {longest} floats exceeds 32-bit indices")

    def write(self, x: tirx.Var) -> tirx.Var:
        """Write stage ``pack``, which copies `x` to a new buffer (n, part, place)."""
        spec, (phases_y, phases_x, height, width) = self.spec, self.channel_shape
        packed = new_buffer("packed", (spec.n, self.parts, spec.c * self.channel))
        extents = (spec.n, self.parts, spec.c, phases_y, phases_x, height, width)
        with T.grid(*extents) as loops, T.sblock("pack"):
            n, part, c, phase_y, phase_x, row, column = T.axis.remap("S" * len(extents), loops)
            place = ((c * phases_y + phase_y) * phases_x + phase_x) * (height * width) + row * width + column
            T.reads(whole(x, n, c))
            T.writes(packed[n, part, place])
            y = (part * self.layout.rows + row) * spec.stride[0] + phase_y
            value = padded(spec, x, n, c, y, column * spec.stride[1] + phase_x)
            T.buffer_store(packed, value, [n, part, place])
        return packed


class DataRowSpace(HandMadeSpace):
    """The space of one layout of the packed input and one tile.

    Its kernels take the weight as `values` (positions, filters) row after row, their `offsets` and the start of each
    row in `rows`: of all tiles of filters the positions in the first `channels`, then in the next.
    """

    def __init__(self, name: str, variant: str, threads: Threads, packed: PackedRows, tile: DataTile):
        packed.require_short()
        self.spec, self.layout, self.packed, self.tile, self.threads = packed.spec, packed.layout, packed, tile, threads
        self.blocks, self.steps = self.spec.k // tile.filters, self.spec.c // self.spec.groups // tile.channels
        row_ends = self.blocks * self.steps + 1
        make_func = partial(csr_function, self.spec, threads.nnz, self._write, rows=row_ends, shared=tile.filters)
        super().__init__(name, variant, make_func, fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        tile = self.tile
        # Filters of a tile share their zeros: the first one's stand for all.
        _, offsets, _ = stretch(weight[:: tile.filters], self.packed.places())
        block, c, r, s = np.nonzero(weight[:: tile.filters])
        values = weight.reshape(self.blocks, tile.filters, *weight.shape[1:])[block, :, c, r, s].astype(np.float32)
        order, rows = by_row(c // tile.channels * self.blocks + block, self.blocks * self.steps)
        # One element stays where there is no non-zero.
        return (values[order].ravel(), offsets[order], rows) if order.size else (np.zeros(1, "f4"), offsets, rows)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        layout, pack = self.layout, self.packed.pack
        blocks = divisors(self.spec.out_h // layout.rows) if pack is Pack.DIRECT else [1]
        filters = [self.tile.filters * each for each in divisors(self.blocks, 32)]
        groups, threads = self.spec.out_h // layout.rows, self.threads
        rows_outside = pack is Pack.GROUP or threads.has_rows_outside(self.spec, groups)

        def best_filters(most: int) -> int:
            return most if pack is Pack.GROUP else threads.filters_of_task(self.spec, groups, filters, most)

        def best_rows(most: int) -> int:
            tiles = 1 if rows_outside else self.spec.k // best_filters(usual_filters)
            return threads.groups_of_task(self.spec, layout.rows, most, packs=False, tiles=tiles)

        usual_filters, usual_rows = nearest(filters, FILTERS), nearest(blocks, 16 / layout.rows)
        filters_block = self.decide_most(choose, "filters", filters, usual_filters, best_filters)
        rows_block = self.decide_most(choose, "row_groups", blocks, usual_rows, best_rows)
        n, k, y, x = sch.get_loops(sch.get_sblock("out"))
        k_outer, k_inner = sch.split(k, [None, filters_block])
        block, group, row = sch.split(y, [None, rows_block, layout.rows])
        outer = [block, k_outer] if rows_outside else [k_outer, block]
        sch.reorder(n, *outer, group, k_inner, row, x)
        self._schedule_conv(sch, choose, outer[-1])
        if pack is Pack.GROUP:
            sch.compute_at(sch.get_sblock("pack"), block, preserve_unit_loops=True)
        elif pack is Pack.ROOT:
            sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock("pack"))[:3]))
        sch.parallel(sch.fuse(n, block) if pack is Pack.GROUP else sch.fuse(n, *outer))
        store_rows(sch, self.spec, layout, row, x)

    def _schedule_conv(self, sch: Schedule, choose: Choose, place: LoopRV) -> None:
        """Compute the sums of a block of filters at the loop `place`."""
        conv = sch.get_sblock("conv")
        sch.compute_at(conv, place, preserve_unit_loops=True)
        block, group, vector, *step = sch.get_loops(conv)[(-4 if self.steps > 1 else -3) :]
        # A step has few positions a tile, and its weights lie in the level-2 cache either way.
        usual = Order.FILTERS_INSIDE if step else Order.PIXELS_INSIDE
        order = self.decide(sch, choose, "order", Order, usual)
        filters_inside = int(sch.get(order)) == Order.FILTERS_INSIDE
        sch.reorder(*step, *([group, vector, block] if filters_inside else [block, group, vector]))

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        """The body of the function: stages ``pack``, unless the input can be read as it is, ``conv`` and ``out``."""
        spec, layout = self.spec, self.layout
        source = arguments["x"] if self.packed.pack is Pack.DIRECT else self.packed.write(arguments["x"])
        groups, pixels = spec.out_h // layout.rows, layout.vectors * layout.lanes
        sums = new_buffer("sums", (spec.n, spec.k, groups, pixels))
        extents = (spec.n, self.blocks, groups, layout.vectors // self.tile.vectors)
        steps = (self.steps,) if self.steps > 1 else ()
        with T.grid(*extents, *steps) as loops, T.sblock("conv"):
            self._write_conv(arguments, source, sums, T.axis.remap("SSSS" + "R" * len(steps), loops))
        with T.grid(*spec.output_shape) as loops, T.sblock("out"):
            index = T.axis.remap("SSSS", loops)
            n, k, row, column = index
            flat = tirx.floormod(row, layout.rows) * layout.row_stride + column
            value = sums[n, k, tirx.floordiv(row, layout.rows), flat]
            T.reads(value, *epilogue_reads(spec, arguments, index))
            T.writes(arguments["y"][tuple(index)])
            T.buffer_store(arguments["y"], epilogue(spec, arguments, value, index), index)

    def _write_conv(self, arguments: dict[str, tirx.Var], source: tirx.Var, sums: tirx.Var, index: list) -> None:
        """One step over input channels of one tile: of all of its sums where there is one step, else added to them."""
        tile, lanes, packed = self.tile, self.layout.lanes, self.packed
        values, offsets, rows = (arguments[name] for name in ("values", "offsets", "rows"))
        n, block, group, vector, *step = index
        row = step[0] * self.blocks + block if step else block
        first, wide = vector * (tile.vectors * lanes), tile.vectors * lanes
        # Read in place, an image lies in memory as the packed one would: the indices flatten to the same address.
        part = [n, 0, 0] if packed.pack is Pack.DIRECT else [n, group if packed.pack is Pack.GROUP else 0]
        T.reads(whole(source, *part[:2]), whole(values), whole(offsets), rows[row : row + 2])
        filters = slice(block * tile.filters, (block + 1) * tile.filters)
        T.writes(sums[n, filters, group, first : first + wide])
        zero = tirx.const(0.0, FLOAT32)

        def each(write: Callable[[int, tirx.Expr, tirx.Expr], None]) -> None:
            """`write` each vector of the tile: its filter, where it lies in `acc`, and its pixels."""
            for f in range(tile.filters):
                for i in range(tile.vectors):
                    with T.vectorized(lanes) as lane:
                        write(f, (f * tile.vectors + i) * lanes + lane, i * lanes + lane)

        def at(f: int, pixel: tirx.Expr) -> list:
            return [n, block * tile.filters + f, group, first + pixel]

        if step:
            with T.init():
                each(lambda f, _, pixel: T.buffer_store(sums, zero, at(f, pixel)))
        acc = new_buffer("acc", (tile.filters * wide,), "local")
        each(lambda f, to, pixel: T.buffer_store(acc, sums[tuple(at(f, pixel))] if step else zero, [to]))
        with T.serial(rows[row], rows[row + 1]) as e:

            def product(f: int, pixel: tirx.Expr) -> tirx.Expr:
                place = (*part, offsets[e] + group * packed.group_step + first + pixel)
                return values[e * tile.filters + f] * source[place]

            each(lambda f, to, pixel: T.buffer_store(acc, acc[to] + product(f, pixel), [to]))
        each(lambda f, to, pixel: T.buffer_store(sums, acc[to], at(f, pixel)))
