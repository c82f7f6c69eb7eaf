"""Dense convolutions on CPUs with vectors of filters: a register tile of output pixels by vectors of filters.

Outermost first::

    parallel over images, groups of blocks of filters, groups of output rows
      sums = 0
      for each block of input channels
        copy what these rows read of it, with padding
        for each block of filters, each tile of pixels of the rows
          load the tile's sums
          for each tap, each channel of the block
            load the vectors of weights, broadcast the pixels, multiply-add
          store the sums
      copy the sums to the output with bias, residual and ReLU

As in products of matrices (Goto and van de Geijn 2008), a block's weights stay in the level-1 cache for all pixels, and
the pixels in the level-2 cache for all filters; the next block is fetched meanwhile. No lane is idle where filters fill
the vectors.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvm_sparse.conv.conv2d_filters import Blocks, conv2d_filters, filter_blocks, needs_packing
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import PREFETCH, SQUARE, STORED, TRANSPOSE, VECTORS
from tvm_sparse.scheduling.cpu.cuts import rounds, rows_packed_again
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, divisors, nearest
from tvm_sparse.target.cpu_info import LINE, CpuInfo

# Pixels of a block of rows: of several taps more, as blocks read some rows of their neighbours.
PIXELS, PIXELS_OF_TAPS = 392, 784
# Sums that hide a multiply-add's latency: two begin in a cycle, and one takes four.
HIDING_SUMS = 8
# What a tile reads in a block of channels: a level-1 cache, of which a tap's row of pixels takes two lines a channel.
CACHE_BYTES, LINES_BYTES = 32 * 1024, 128
# Sums of a task: a level-2 cache.
SUMS_BYTES = 512 * 1024
# Input channels between two jumps.
UNROLLED = 4
# How long a task copies its input, in the time of so many filters of one tap, and reads its weights, in that of so many
# pixels.
COPYING, READING = 8, 8
# How long loading a tap's weights takes, in the time of a pixel's multiply-adds.
WEIGHT_LOADING = 0.5
# How many times as long tiles of one vector take, each of whose multiply-adds reads a pixel of its own.
ONE_VECTOR = 1.25
# How long storing an output takes, in the time of a vector's multiply-add: with 32 registers and with 16.
STORING, STORING_OF_FEW = 0.2, 0.7
# Pixels of a map at least whose outputs are fetched while sums are computed.
FETCHED_PIXELS = 784
# Pixels that are gathered at most, where neither filters nor pixels come in fours.
MOST_STORED = 16


class FilterSpace(HandMadeSpace):
    """The space of blocks of `vectors` vectors of filters, for convolutions of one group, by so many threads."""

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, vectors: int, threads: int = 1):
        self.spec, self._lanes, self._threads = spec, cpu.lanes, threads
        self._storing = STORING if cpu.has_many_registers else STORING_OF_FEW
        self.cut = _blocks(spec, cpu, vectors, threads)
        make_func = partial(conv2d_filters, spec, self.cut)
        super().__init__(name, f"tile{self.cut.pixels}x{self.cut.filters}", make_func, fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight in blocks, in the order of their use."""
        return (filter_blocks(weight, self.cut),)

    @property
    def cost(self) -> float:
        """Estimated time, as a multiple of that of the multiply-adds alone.

        Idle lanes take as long as others, and where there are few sums a multiply-add waits for the one before. Of
        several threads the busiest counts.
        """
        spec, cut = self.spec, self.cut
        waste = cut.count(spec) * cut.filters * cut.columns(spec) / (spec.k * cut.rows * spec.out_w)
        waste *= self.imbalance
        sums = cut.filters // self._lanes * cut.pixels
        waste *= ONE_VECTOR if cut.filters == self._lanes else 1.0
        return waste * max(1.0, HIDING_SUMS / sums) + self._storing * self._lanes / (spec.c * spec.r * spec.s)

    @property
    def imbalance(self) -> float:
        """How many times as long as one thread's share of the work its threads take."""
        spec, cut, blocks = self.spec, self.cut, self.cut.count(self.spec)
        busiest, alone = (_time(spec, cut, _most_even(spec, cut, blocks, n), n) for n in (self._threads, 1))
        return busiest * self._threads / alone

    def apply(self, sch: Schedule, choose: Choose) -> None:
        spec, cut = self.spec, self.cut
        group = self._blocks_of_task(choose)
        conv, out = sch.get_sblock("conv"), sch.get_sblock("out")
        n, k, y, x = sch.get_loops(out)
        k, block, lane = sch.split(k, [None, group, cut.filters])
        y, row = sch.split(y, [None, cut.rows])
        sch.reorder(n, k, y, block, row, x, lane)
        outer = sch.fuse(n, k, y)
        sch.parallel(outer)
        store_filters(sch, spec, sch.fuse(row, x), lane, self._lanes)

        is_one_block = cut.channels == spec.c
        sch.compute_at(conv, block if is_one_block else outer, preserve_unit_loops=True)
        block, pixel, lane, c, r, s = sch.get_loops(conv)[-6:]
        pixel, tile = sch.split(pixel, [None, cut.pixels])
        c, channel = sch.split(c, [None, cut.channels])
        channel, unrolled = sch.split(channel, [None, divisors(cut.channels, UNROLLED)[-1]])
        sch.reorder(*((block, pixel, c) if is_one_block else (c, block, pixel)), r, s, channel, unrolled, tile, lane)
        sch.vectorize(lane)
        for loop in (unrolled, tile):
            sch.unroll(loop)
        if cut.packs:
            pack = sch.get_sblock("pack")
            sch.compute_at(pack, outer if is_one_block else c, preserve_unit_loops=True)
            # Channels an odd number of lines apart do not displace each other from a cache of 64 sets.
            sch.storage_align(pack, 0, 1, 2 * LINE, LINE)
        init = sch.decompose_reduction(conv, c)
        sch.annotate(pixel, PREFETCH, math.prod(cut.weight_shape(spec)[2:]))
        if is_one_block:
            if fetches_outputs(spec) and not spec.k % cut.filters:
                sch.annotate(pixel, STORED, [cut.filters, spec.out_h * spec.out_w, cut.rows * spec.out_w])
            sch.unroll(sch.get_loops(init)[-2])

    def _blocks_of_task(self, choose: Choose) -> Any:
        """Blocks of filters of a task; fewer than decided where threads would end at different times."""
        blocks = divisors(self.cut.count(self.spec))

        def best(most: int) -> int:
            return most if self._threads == 1 else _most_even(self.spec, self.cut, most, self._threads)

        usual = _most_even(self.spec, self.cut, blocks[-1], self._threads)
        return self.decide_most(choose, "blocks", blocks, usual, best)


class FormerFilterSpace(FilterSpace):
    """The space that records of ``filters`` are of, from before there were blocks of channels.

    Its decisions are read, and the kernel is today's default, which is faster than any of theirs.
    """

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, vectors: int, threads: int):
        super().__init__(name, spec, cpu, vectors, threads)
        self.variant = f"filters{self.cut.filters}"

    def _blocks_of_task(self, choose: Choose) -> int:
        spec, blocks = self.spec, self.cut.count(self.spec)
        choose.one_of("pixels", range(1, MOST_STORED), self.cut.pixels)
        choose.one_of("rows", divisors(spec.out_h), self.cut.rows)
        choose.one_of("channels", divisors(spec.c, UNROLLED), 1)
        return _most_even(spec, self.cut, blocks, self._threads)


def _blocks(spec: ConvSpec, cpu: CpuInfo, vectors: int, threads: int) -> Blocks:
    """Tiles whose sums fit the registers beside a tap's weights and a pixel, and that leave few lanes idle.

    Of several threads each has as many rows as the others, and no more than fit its caches.
    """
    filters = cpu.lanes * vectors
    channels = nearest(divisors(spec.c), CACHE_BYTES / (spec.r * (spec.s * filters * 4 + LINES_BYTES)))
    pixels = PIXELS if spec.r * spec.s == 1 else PIXELS_OF_TAPS
    fitting = nearest(divisors(spec.out_h), pixels / spec.out_w)
    # Threads read what others have just written: from channel to channel, as tiles read, it comes slower than in order.
    packs = threads > 1 or needs_packing(spec)

    def tiles(rows: int) -> Blocks:
        return Blocks(filters, channels, rows, register_tile(cpu, vectors, rows * spec.out_w), packs)

    def cost(cut: Blocks) -> tuple[float, int]:
        return _time(spec, cut, _most_even(spec, cut, cut.count(spec), threads), threads), -cut.rows

    return min(map(tiles, [fitting] if threads == 1 else divisors(spec.out_h, fitting)), key=cost)


def fetches_outputs(spec: ConvSpec) -> bool:
    """Whether outputs are fetched beforehand: of smaller maps they are in a level-2 cache where the layer begins.

    In MobileNetV2 384 filters on 64 channels of 14x14 took 1.08 times as long with it.
    """
    return spec.out_h * spec.out_w >= FETCHED_PIXELS


def fitting_vectors(spec: ConvSpec, cpu: CpuInfo, offered: Sequence[int], threads: int) -> list[int]:
    """Vectors of filters of a block, of those `offered`: no more than there are filters for."""
    needed = -(-spec.k // cpu.lanes)
    # Short blocks of filters are more of them, for threads to share, and leave no vector of a pair idle.
    offered = (*offered, 1) if threads > 1 or needed % 2 else offered
    # LLVM takes vectors of 48 floats apart: such blocks took five to nine times as long as those of 32.
    return list(dict.fromkeys(min(each, 1 << (needed - 1).bit_length()) for each in offered))


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


def register_tile(cpu: CpuInfo, vectors: int, pixels: int, least: float = 0.75) -> int:
    """How many of so many `pixels` are computed at once, for `vectors` vectors of filters.

    No fewer than that share `least` of those that fit the registers beside a tap's weights and a pixel.

    LLVM loads some pixels ahead, more of them where a tile has more. Of the last tile some may be idle.
    """
    most = max(1, (cpu.registers - vectors - cpu.registers // 8) // vectors)

    def cost(tile: int) -> float:
        return -(-pixels // tile) * tile * (1 + WEIGHT_LOADING / tile)

    return min(range(math.ceil(most * least), most + 1), key=cost)


def _most_even(spec: ConvSpec, cut: Blocks, most: int, threads: int) -> int:
    """Blocks of filters of a task: such that all threads end at once, and the sums fit a level-2 cache."""
    most = min(most, max(1, SUMS_BYTES // (cut.columns(spec) * cut.filters * 4)))
    offered = divisors(cut.count(spec), most)
    return min(offered, key=lambda each: (_time(spec, cut, each, threads), -each))


def _time(spec: ConvSpec, cut: Blocks, group: int, threads: int) -> float:
    """Of the busiest thread, whose tasks have `group` blocks of filters, in that of a block's multiply-adds a pixel."""
    tasks = spec.n * (spec.out_h // cut.rows) * (cut.count(spec) // group)
    copying = COPYING / (spec.r * spec.s * cut.filters) if cut.packs else 0.0
    copied = copying * (1 + rows_packed_again(spec) / cut.rows)
    return rounds(tasks, threads) * (cut.columns(spec) + READING) * (group + copied)
