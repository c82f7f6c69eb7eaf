"""Dense 3x3 convolutions on CPUs by Winograd's F(2x2, 3x3): a register tile of input tiles by vectors of filters.

Outermost first::

    parallel over images, groups of blocks of filters, groups of rows of tiles
      for each channel: copy the rows with padding, transform their tiles (16 numbers for four pixels)
      for each block of filters
        for each of 16 positions, each block of input channels, each register tile
          load the sums; for each channel load the vectors of weights, broadcast the tiles, multiply-add; store
        transform the sums, copy them to the output with bias, residual and ReLU

Transformed tiles stay in the level-2 cache. As in `filters` a block's weights and tiles stay in the level-1 cache,
and the next block of weights is fetched meanwhile.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_sparse.conv.conv2d_winograd import TileBlocks, across, conv2d_winograd, down, is_served, transformed_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.winograd_filter import READ, TILE
from tvm_sparse.scheduling.annotations import EVERY_OTHER, PREFETCH, VECTORS
from tvm_sparse.scheduling.cpu.cuts import rounds
from tvm_sparse.scheduling.cpu.filters import ONE_VECTOR, UNROLLED, fitting_vectors, register_tile, store_filters
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, NotApplicable, divisors, nearest
from tvm_sparse.target.cpu_info import LINE, CpuInfo

# Input channels of a block: their weights and tiles fit a level-1 cache (256x256 on 14x14: 888 us with 32, 967 with 64,
# 1,130 with all).
CHANNELS = 32
# Vectors of filters of a block at most; those that are offered, the better first, of few input channels and of many;
# without the registers for four.
MOST_VECTORS = 4
VECTORS_OF_FILTERS, VECTORS_OF_MANY, VECTORS_OF_FEW, MANY_CHANNELS = (2, 4), (4, 2), (2,), 512
# How long reading a block's weights takes, in the time of so many tiles, and the share of a register tile at least.
READING, LEAST_TILE = 5, 0.5
# What transforming takes: a vector of tiles of an input channel, in multiply-adds of a register, however few lanes it
# has; and a tile of a filter, in single ones.
INPUT, OUTPUT = 60, 160
# Transformed tiles of so many bytes double the time of their products, as the level-2 cache holds less beside them; but
# from a level-3 cache no product takes longer than so many times (2048x512 on 28x28: 1.1 times, with 26 MB of tiles).
TILES_BYTES, FROM_LEVEL_3 = 4 << 20, 1.6


class WinogradSpace(HandMadeSpace):
    """The space of blocks of `vectors` vectors of filters, by so many threads; NotApplicable as `require_served`."""

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, vectors: int, threads: int = 1):
        require_served(spec)
        self.spec, self._work = spec, _Work(spec, cpu.lanes, threads)
        self.cut = _blocks(self._work, cpu, vectors)
        make_func = partial(conv2d_winograd, spec, self.cut)
        super().__init__(name, f"filters{self.cut.filters}", make_func, fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight transformed, in the order of its use."""
        return (transformed_weight(weight, self.cut),)

    @property
    def cost(self) -> float:
        """Estimated time, as a multiple of that of the multiply-adds of a direct convolution."""
        spec, work = self.spec, self._work
        busiest = work.time(self.cut, work.most_even(self.cut, self.cut.count(spec)))
        return busiest * work.threads / (math.prod(spec.weight_shape) * spec.n * spec.out_h * spec.out_w)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        spec, cut, work = self.spec, self.cut, self._work
        best, blocks = partial(work.most_even, cut), divisors(cut.count(spec))
        group = self.decide_most(choose, "blocks", blocks, best(blocks[-1]), best)
        conv, out = sch.get_sblock("conv"), sch.get_sblock("out")
        n, k, y, x = sch.get_loops(out)
        k, block, lane = sch.split(k, [None, group, cut.filters])
        y, row = sch.split(y, [None, min(TILE * cut.rows, spec.out_h)])
        sch.reorder(n, k, y, block, row, x, lane)
        outer = sch.fuse(n, k, y)
        sch.parallel(outer)
        # Whether the last group has a row is asked outside of the loop over its pixels.
        is_whole = spec.out_h % (TILE * cut.rows) in (0, spec.out_h)
        store_filters(sch, spec, sch.fuse(row, x) if is_whole else x, lane, work.lanes)
        self._schedule_sums(sch, block)
        sch.compute_at(conv, block, preserve_unit_loops=True)
        channels, tile = self._schedule_conv(sch, conv)
        self._schedule_tiles(sch, outer)
        init = sch.decompose_reduction(conv, channels)
        sch.annotate(tile, PREFETCH, cut.channels * cut.filters)
        if cut.channels == spec.c:
            sch.unroll(sch.get_loops(init)[-2])

    def _schedule_sums(self, sch: Schedule, block: LoopRV) -> None:
        """Transform all four pixels of a tile at once."""
        sums = sch.get_sblock("sums")
        sch.compute_at(sums, block, preserve_unit_loops=True)
        y, x, lane = sch.get_loops(sums)[-3:]
        (y, i), (x, j) = (sch.split(each, [None, TILE]) for each in (y, x))
        sch.reorder(y, x, i, j, lane)
        sch.vectorize(lane)
        for loop in (i, j):
            sch.unroll(loop)

    def _schedule_conv(self, sch: Schedule, conv: SBlockRV) -> tuple[LoopRV, LoopRV]:
        """Order the multiply-adds; returns the loops over blocks of channels and over register tiles."""
        cut = self.cut
        tile, lane, c = sch.get_loops(conv)[-3:]
        tile, inner = sch.split(tile, [None, cut.tiles])
        unrolled = math.gcd(cut.channels, UNROLLED)
        block, c, unrolled = sch.split(c, [None, cut.channels // unrolled, unrolled])
        is_one_block = cut.channels == self.spec.c
        sch.reorder(*((tile, block) if is_one_block else (block, tile)), c, unrolled, inner, lane)
        sch.vectorize(lane)
        for loop in (unrolled, inner):
            sch.unroll(loop)
        return block, tile

    def _schedule_tiles(self, sch: Schedule, outer: LoopRV) -> None:
        """Transform a channel's tiles by vectors of neighbours, a row of the four by four after the other."""
        tiles, pack = sch.get_sblock("tiles"), sch.get_sblock("pack")
        sch.compute_at(tiles, outer, preserve_unit_loops=True)
        c, i, j, row, tile = sch.get_loops(tiles)[-5:]
        sch.reorder(c, i, row, tile, j)
        for loop in (i, j):
            sch.unroll(loop)
        if self._work.row_lanes > 1:
            sch.annotate(tile, VECTORS, self._work.row_lanes)
            sch.annotate(tile, EVERY_OTHER, 1)
        # Channels an odd number of lines apart do not displace each other from a cache of 64 sets.
        sch.storage_align(tiles, 0, 2, 2 * LINE, LINE)
        sch.compute_at(pack, c, preserve_unit_loops=True)


def require_served(spec: ConvSpec) -> None:
    """Raise NotApplicable for a convolution that is not by 3x3 taps."""
    if not is_served(spec):
        raise NotApplicable("only 3x3 taps without stride, dilation or groups are served, in float32")


def in_caches(spec: ConvSpec, tiles: int) -> float:
    """How many times as long products take of so many transformed tiles, of all channels, as of few."""
    return min(1 + READ * READ * 4 * spec.c * tiles / TILES_BYTES, FROM_LEVEL_3)


def vectors_of(spec: ConvSpec, cpu: CpuInfo, threads: int) -> list[int]:
    """Vectors of filters that register tiles may have, the better first."""
    many = VECTORS_OF_MANY if spec.c >= MANY_CHANNELS else VECTORS_OF_FILTERS
    return fitting_vectors(spec, cpu, many if cpu.has_many_registers else VECTORS_OF_FEW, threads)


@dataclass(frozen=True)
class _Work:
    """What a convolution takes so many threads, with registers of so many lanes."""

    spec: ConvSpec
    lanes: int
    threads: int

    @property
    def row_lanes(self) -> int:
        """Tiles that are transformed at once: no more than a row has."""
        return 1 << (min(self.lanes, across(self.spec)).bit_length() - 1)

    def most_even(self, cut: TileBlocks, most: int) -> int:
        """Blocks of filters of a task, such that all threads end at once."""
        return min(divisors(cut.count(self.spec), most), key=lambda each: (self.time(cut, each), -each))

    def time(self, cut: TileBlocks, group: int) -> float:
        """Of the busiest thread, whose tasks have `group` blocks of filters, in multiply-adds."""
        spec, filters = self.spec, group * cut.filters
        tiles = cut.rows * across(spec)
        products = READ * READ * spec.c * filters * (cut.columns(spec) + READING) * in_caches(spec, tiles)
        products *= ONE_VECTOR if cut.filters == self.lanes else 1.0
        vectors = cut.rows * -(-across(spec) // self.row_lanes)
        transforms = INPUT * self.lanes * vectors * spec.c + OUTPUT * tiles * filters
        tasks = spec.n * (down(spec) // cut.rows) * (cut.count(spec) // group)
        return rounds(tasks, self.threads) * (products + transforms)


def _blocks(work: _Work, cpu: CpuInfo, vectors: int) -> TileBlocks:
    """Rows of tiles and blocks that take the busiest thread least."""
    spec = work.spec
    filters, channels = cpu.lanes * vectors, nearest(divisors(spec.c), CHANNELS)

    def cut(rows: int) -> TileBlocks:
        return TileBlocks(filters, channels, rows, register_tile(cpu, vectors, rows * across(spec), LEAST_TILE))

    def cost(cut: TileBlocks) -> tuple[float, int]:
        return work.time(cut, work.most_even(cut, cut.count(spec))), -cut.rows

    return min(map(cut, divisors(down(spec))), key=cost)
