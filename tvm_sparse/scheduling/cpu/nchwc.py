"""Dense convolutions on CPUs with vectors of filters, of tensors in blocks of channels or not.

Outermost first::

    parallel over images, groups of blocks of filters and of output rows, in either order
      copy what these rows read, with padding, if there is any
      for each block of filters, each block of input channels, each tile of pixels of a row
        load the tile's sums
        for each tap, each channel of the block
          load the vectors of weights, broadcast the pixels, multiply-add
        store the sums

The last step writes the output, with bias, residual and ReLU, where all channels are one block and the output lies in
blocks, so that sums never leave the registers. Otherwise a block's weights stay in the level-1 cache for all pixels, as
in products of matrices (Goto and van de Geijn 2008), and the next block is fetched meanwhile; an output that does not
lie in blocks is transposed as it is stored. No lane is idle where filters fill the vectors.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_sparse.conv.conv2d_nchwc import blocked_weight, conv2d_nchwc
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.conv.nchwc import Columns, Layouts
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import INPUT_ROWS, PAIR, PREFETCH, SQUARE, TRANSPOSE, VECTORS
from tvm_sparse.scheduling.argument_views import shape_of, storing_at, with_shapes
from tvm_sparse.scheduling.cpu.blocked_space import BlockedSpace
from tvm_sparse.scheduling.cpu.cost import rounds
from tvm_sparse.scheduling.cpu.nchwc_cut import best_cut, channels_of, fills_blocks, long_rows, packs, vectors_of
from tvm_sparse.scheduling.space import Choose, divisors
from tvm_sparse.target.cpu_info import LINE, CpuInfo

# Input channels between two jumps.
UNROLLED = 4
# Pixels that are gathered at most, where neither filters nor pixels come in fours.
MOST_STORED = 16
# The share of padding in the rows that taps read from which on it pays to ask: 7x1 on 17x17 takes 0.94 of the time,
# 3x3 on 8x8 0.95, and one of dilation 12 on 14x14 0.51 (a Zen 5).
LEAST_PADDING = 0.04


class NCHWcSpace(BlockedSpace):
    """The space of a convolution that it `computes`.

    `interleaving`: how it interleaves its outputs; None: it does not.
    """

    def __init__(
        self,
        name: str,
        spec: ConvSpec,
        cpu: CpuInfo,
        layouts: Layouts,
        threads: int = 1,
        interleaving: Interleaving | None = None,
    ):
        spec = replace(spec, k=layouts.filled(spec.k)) if layouts.y else spec
        super().__init__(name, spec, cpu, layouts, threads)
        self.interleaving = interleaving
        self._long, self.cut = best_cut(spec, cpu, layouts, threads, joins_rows=interleaving is None)
        self._filters, self._columns = cpu.lanes * self.cut.vectors, self.cut.columns(self._long)
        self._packs = packs(self._long, layouts, self.cut, threads)

    @staticmethod
    def computes(spec: ConvSpec, cpu: CpuInfo) -> bool:
        """Whether it can be computed so: groups fill vectors, and rows of pixels fill tiles, of either input."""
        filters, channels = spec.k // spec.groups, spec.c // spec.groups
        are_whole = spec.groups == 1 or not (filters % cpu.lanes or channels % cpu.lanes)
        forms = long_rows(spec)
        return are_whole and all(any(vectors_of(each, cpu, blocked) for each in forms) for blocked in (True, False))

    @classmethod
    def writes(cls, spec: ConvSpec, cpu: CpuInfo) -> bool:
        return cpu.has_block_kernels and spec.dtype == FLOAT32 and fills_blocks(spec.k, cpu) and cls.computes(spec, cpu)

    @staticmethod
    def reads(spec: ConvSpec, cpu: CpuInfo) -> bool:
        return fills_blocks(spec.c, cpu)

    @property
    def imbalance(self) -> float:
        """How many times as long as one thread's share of the work its threads take."""
        tasks = self.cut.tasks(self._long, self._cpu.lanes)
        return rounds(tasks, self._threads) * self._threads / tasks

    def interleaved(self, interleaving: Interleaving) -> "NCHWcSpace | None":
        """The same that interleaves its outputs, where it can: by pairs of filters, whose outputs are neighbours."""
        spec, layouts = self.spec, self.layouts
        is_plain = spec.dtype == FLOAT32 and spec.groups == 1 and not (layouts.y or spec.residual)
        vector = math.gcd(self._cpu.lanes, spec.k)
        comes_in_squares = vector % SQUARE == 0 and vector % interleaving.phases == 0 and spec.out_w >= SQUARE
        is_whole = interleaving.is_whole and interleaving.stride[1] == PAIR
        if not (is_plain and comes_in_squares and is_whole and vectors_of(spec, self._cpu, layouts.x)):
            return None
        return NCHWcSpace(self.schedule, spec, self._cpu, layouts, self._threads, interleaving)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight in blocks, in the order of their use."""
        ordered = weight if self.interleaving is None else self.interleaving.by_channel(weight)
        return (blocked_weight(ordered, self._channels, self._filters),)

    @cached_property
    def _channels(self) -> int:
        """Input channels of a block."""
        tiles, floats = self.cut.rows * self._columns.count // self.cut.tile, self.spec.r * self.spec.s * self._filters
        return channels_of(self.spec, self._cpu, floats, tiles, self.cut.vectors, self.layouts.x)

    @property
    def _is_one_block(self) -> bool:
        """Whether a tile's sums begin in registers."""
        return self._channels == self.spec.weight_shape[1]

    @property
    def _is_one_step(self) -> bool:
        """Whether they go from there to the output."""
        return self._is_one_block and self.layouts.y

    def finished(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """`func`, whose rows may be long and have columns, with arguments as the layer has them."""
        last, long = len(func.params) - 1, self._long
        if self.layouts.y:
            func = storing_pixels(func, self.layouts.shape("y", long.output_shape), self._columns)
        of = {"x": self.spec.input_shape, "residual": self.spec.output_shape}
        shapes = [
            self.layouts.shape(each.name, of[each.name]) if each.name in of else shape_of(each) for each in func.params
        ]
        shapes[last] = self.layouts.shape("y", self.spec.output_shape)
        if (mixed := self.interleaving) is not None:
            shapes[last] = mixed.shape(self.spec.n, self.spec.k)
            func = storing_at(func, last, shapes[last], lambda at: [at[0], *mixed.place(*at[1:])])
        return with_shapes(func, shapes)

    def _unscheduled(self) -> tirx.PrimFunc:
        spec, channels, filters = self._long, self._channels, self._filters
        shape = (-(-spec.k // filters), spec.weight_shape[1] // channels, spec.r, spec.s, channels, filters)
        return conv2d_nchwc(spec, self.layouts, shape, self._packs, self._columns, self.interleaving)

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        conv = sch.get_sblock("conv")
        outer, block, tile = self._schedule_out(sch)
        sch.parallel(outer)
        sch.compute_at(conv, tile if self._is_one_step else block, preserve_unit_loops=True)
        y, x, lane, c, r, s = sch.get_loops(conv)[-6:]
        x, pixel = sch.split(x, [None, self.cut.tile])
        vector, lane = sch.split(lane, [None, self._cpu.lanes])
        # Of channels in blocks those of one are read together.
        together = math.gcd(self._cpu.lanes, self._channels) if self.layouts.x else self._channels
        unrolled = divisors(together, UNROLLED)[-1]
        parts = [None, self._channels // together, together // unrolled, unrolled]
        c, part, channel, unrolled = sch.split(c, parts)
        outside = (y, x, c) if self._is_one_block else (c, y, x)
        sch.reorder(*outside, r, s, part, channel, unrolled, pixel, vector, lane)
        tile = sch.fuse(y, x)
        in_registers(sch, unrolled, pixel, vector, lane)
        if self._packs:
            self._schedule_pack(sch, outer)
        init = sch.decompose_reduction(conv, c)
        if not self._is_one_step:
            sch.annotate(tile, PREFETCH, self._channels * self.spec.r * self.spec.s * self._filters)
        for loop in sch.get_loops(init)[-3:-1]:
            sch.unroll(loop)
        skip_padding(sch, conv, self.spec, LEAST_PADDING)

    def _schedule_out(self, sch: Schedule) -> tuple[LoopRV, LoopRV, LoopRV]:
        """Order the stores; returns the loops over tasks, blocks of filters, and tiles of pixels."""
        group, rows = self.cut.group, self.cut.rows
        n, k, y, x, *lane = sch.get_loops(sch.get_sblock("out"))
        y, row = sch.split(y, [None, rows])
        # Vectors of filters, or filters.
        k, block, inner = sch.split(k, [None, group, self.cut.vectors if self.layouts.y else self._filters])
        tasks = tasks_in_order(self.spec, k, y)
        if not self.layouts.y:
            sch.reorder(n, *tasks, block, row, x, inner)
            outer = sch.fuse(n, *tasks)
            # Whether the last task has a row is asked outside of the loop over its pixels.
            is_one = self._long.out_h % rows == 0 and self.interleaving is None
            pixels = sch.fuse(row, x) if is_one else x
            store_filters(sch, self.spec, pixels, inner, self._cpu.lanes)
            return outer, block, block
        tile, pixel = sch.split(x, [None, self.cut.tile])
        sch.reorder(n, *tasks, block, row, tile, pixel, inner, *lane)
        in_registers(sch, pixel, inner, *lane)
        return sch.fuse(n, *tasks), block, sch.fuse(row, tile)

    def _schedule_pack(self, sch: Schedule, outer: LoopRV) -> None:
        pack = sch.get_sblock("pack")
        sch.compute_at(pack, outer, preserve_unit_loops=True)
        if self.layouts.x:
            sch.vectorize(sch.get_loops(pack)[-1])
        else:
            # Channels an odd number of lines apart do not displace each other from a cache of 64 sets.
            sch.storage_align(pack, 0, 1, 2 * LINE, LINE)


def tasks_in_order(spec: ConvSpec, filters: LoopRV, rows: LoopRV) -> tuple[LoopRV, LoopRV]:
    """The loops over tasks' `filters` and `rows`, outermost first.

    A thread's tasks are one after the other: some rows of all filters, or some filters of all rows. Of the former it
    reads all of the weight, of the latter all of the input, of which other threads have just written a part; here, of
    one tap, what is smaller. So neighbouring layers are divided alike, and what a thread reads it has written itself.
    In MobileNetV1 on two threads 128 filters of 128 channels on 56x56 take 0.74 of the time so, 64 of 32 on 112x112
    0.75.
    """
    return (rows, filters) if spec.h * spec.w >= spec.k else (filters, rows)


def in_registers(sch: Schedule, *loops: LoopRV) -> None:
    """Unroll all loops but the last, which is one over the lanes of a vector."""
    for loop in loops[:-1]:
        sch.unroll(loop)
    sch.vectorize(loops[-1])


def store_filters(sch: Schedule, spec: ConvSpec, pixel: LoopRV, lane: LoopRV, lanes: int) -> None:
    """Store pixels of filters, of sums whose filters `lane` lie side by side, by vectors of at most so many `lanes`."""
    vector, pixels = math.gcd(lanes, spec.k), int(sch.get(pixel).extent)
    if vector % SQUARE or pixels < SQUARE or spec.dtype != FLOAT32:
        # Sums alone are transposed, where pixels come in fours.
        is_square = pixels % SQUARE == 0
        pixel, stored = sch.split(pixel, [None, SQUARE if is_square else divisors(pixels, MOST_STORED)[-1]])
        lane, column = sch.split(lane, [None, SQUARE if is_square else 1])
        sch.reorder(lane, pixel, column, stored)
        sch.vectorize(stored)
        if is_square:
            sch.annotate(column, TRANSPOSE, 1)
        return
    lane, inner = sch.split(lane, [None, vector])
    sch.reorder(lane, pixel, inner)
    sch.vectorize(inner)
    sch.annotate(pixel, VECTORS, SQUARE)
    sch.annotate(pixel, TRANSPOSE, 1)


def storing_pixels(func: tirx.PrimFunc, shape: Sequence[int], columns: Columns) -> tirx.PrimFunc:
    """`func`, whose last argument are `columns` in blocks, storing the pixels that these are, of such a `shape`."""
    return storing_at(func, len(func.params) - 1, shape, lambda at: [*at[:3], columns.pixel(at[3]), at[4]])


def skip_padding(sch: Schedule, conv: SBlockRV, spec: ConvSpec, least: float = 0.0) -> None:
    """Multiply with no row of padding, if there are any, a share of `least` or more of all that the taps read."""
    stride, dilation, top = spec.stride[0], spec.dilation[0], spec.padding[0]
    rows = [y * stride + r * dilation - top for y in range(spec.out_h) for r in range(spec.r)]
    share = sum(not 0 <= row < spec.h for row in rows) / len(rows)
    if share and share >= least:
        sch.annotate(conv, INPUT_ROWS, [stride, dilation, top, spec.h])
