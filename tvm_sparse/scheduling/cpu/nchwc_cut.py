"""How dense convolutions whose tensors lie in blocks of channels (`nchwc`) are cut into tiles and tasks."""

import math
from dataclasses import dataclass, replace

from tvm_sparse.conv.conv2d_filters import needs_packing
from tvm_sparse.conv.nchwc import Columns, Layouts
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.cuts import rounds_of_any, rows_packed_again
from tvm_sparse.scheduling.cpu.filters import HIDING_SUMS
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.cpu_info import LINE, CpuInfo

# Vectors of filters of a register tile; where there are no multiple of these, the first of the others, or one.
VECTORS = 2
OTHER_VECTORS = (3, 5, 7)
# With many registers these where all channels' weights stay in a level-1 cache, and of one tap on so many pixels where
# those of `VECTORS` do not either: a tile of 4x7 takes 39 instructions for its products, one of 2x14 takes 44 for
# as many. That is 0.84 to 1.0 of the time of 128 channels or fewer, and of 512 and more. Of 160 and 256 two vectors
# keep their sums in registers, and four take 1.05 times as long; so they do on 7x7, for which weights are read anew.
MOST_VECTORS, MANY_PIXELS = 4, 100
# Pixels that a row lacks to fill its last tile at most, as a share: 17 are two tiles of nine.
MOST_REST = 1 / 6
# Channels that fill the last block of a tensor at most, as a share of the others: eight are in a block of 16.
MOST_EMPTY = 1
# Weights of all input channels that a tile reads at once, or of a block of them for the most vectors; those of a block
# for fewer, and for few registers: a level-1 cache holds them beside what tiles read, of 48 KB with AVX-512 and of 32
# with AVX2. And lines of the next block that a tile fetches at most: with 37 of them a tile of 7x14 products waits for
# them, and 2048x512 on 7x7 takes 1.5 times as long as with 19.
WHOLE_BYTES, BLOCK_BYTES, BYTES_OF_FEW, FETCHED_LINES = 32 * 1024, 24 * 1024, 16 * 1024, 32
# Pixels of a task at most.
PIXELS = 784
# How long loading a vector's weights for a tile takes, in the time of so many pixels: with AVX-512, and with AVX2,
# whose pixels are loaded too: of 512x128x1x1 on 30x30 tiles of six do 40.3 GMAC/s, of five 38.9, and of 256x256x3x3 on
# 12x12 tiles of six 45.1, of four 39.5.
LOADING, LOADING_OF_FEW = 0.5, 2.0
# How long a task reads its weights, in the time of so many pixels, and copies a vector of its input, in that of so many
# multiply-adds of a vector. Input of so many bytes, which a level-2 cache does not hold, takes as long to read as one
# tap takes to multiply: of nine, each of which reads it again, 2048x512 on 28x28 takes 0.82 of the time by 28 rows at
# once, not by 2. Of one, which reads it in order, it takes a part of that, as if there were so many taps.
READING, COPYING, INPUT_BYTES, LEAST_TAPS = 8, 4, 4 << 20, 4


@dataclass(frozen=True)
class Cut:
    """How a convolution is cut: into register tiles of so many `vectors` of filters by the pixels `tile` of a row.

    A task has `group` blocks of these filters, and `rows` output rows, the last one as many as are left.
    """

    vectors: int
    tile: int
    group: int
    rows: int

    def columns(self, spec: ConvSpec) -> Columns:
        """A row in tiles."""
        return Columns(spec.out_w, self.tile)

    def tasks(self, spec: ConvSpec, lanes: int) -> int:
        """How many there are."""
        return spec.n * -(-spec.out_h // self.rows) * (spec.k // (lanes * self.vectors) // self.group)


def best_cut(spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int) -> tuple[ConvSpec, Cut]:
    """The cut by which the busiest thread ends first, of `spec` or of `long_rows` of it."""
    offered = [(each, cut) for each in long_rows(spec) for cut in _cuts(each, cpu)]

    def cost(of: tuple[ConvSpec, Cut]) -> tuple[float, int, int]:
        long, cut = of
        return _time(long, cpu, layouts, threads, cut), -cut.group, -cut.rows * long.out_w

    return min(offered, key=cost)


def _cuts(spec: ConvSpec, cpu: CpuInfo) -> list[Cut]:
    most = max(1, PIXELS // spec.out_w)
    rows = sorted({-(-spec.out_h // groups) for groups in range(1, spec.out_h + 1)} & {*range(1, most + 1)})
    if (vectors := vectors_of(spec, cpu)) == 0:
        return []
    tile = tile_of(spec.out_w, cpu, vectors)
    return [Cut(vectors, tile, group, each) for group in divisors(spec.k // (cpu.lanes * vectors)) for each in rows]


def long_rows(spec: ConvSpec) -> list[ConvSpec]:
    """`spec`, and where each pixel is of one pixel, convolutions of fewer and longer rows that are the same in memory.

    Tiles divide them better: 14 rows of 14 pixels are 33 tiles of six and less, each row alone three.
    """
    if spec.r * spec.s > 1 or spec.stride != (1, 1) or any(spec.padding):
        return [spec]
    joined = divisors(spec.h, max(1, PIXELS // spec.w))
    return [replace(spec, h=spec.h // each, w=spec.w * each) for each in joined]


def packs(spec: ConvSpec, layouts: Layouts, cut: Cut, threads: int) -> bool:
    """Whether what a task reads is copied: threads read what others have just written, in order it comes faster."""
    goes_beyond = not layouts.y and cut.columns(spec).count > spec.out_w
    return goes_beyond or any(spec.padding) or (not layouts.x and (threads > 1 or needs_packing(spec)))


def _time(spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int, cut: Cut) -> float:
    """Of the busiest thread, in multiply-adds of a vector of filters."""
    taps, rows = spec.r * spec.s, cut.rows
    skipped, width = (1, spec.out_w) if taps == 1 else (spec.stride[0], spec.w)
    channels = spec.weight_shape[1]
    # All of its blocks read the same channels, or each those of its group.
    read = (rows + rows_packed_again(spec)) * skipped * width * channels * (cut.group if spec.groups > 1 else 1)
    in_cache = 1 + 4 * read / (max(taps, LEAST_TAPS) * INPUT_BYTES)
    pixels = rows * cut.columns(spec).count * (1 + loading(cpu) / cut.tile)
    products = cut.vectors * cut.group * taps * channels * (pixels + READING) * in_cache
    copied = COPYING * read / cpu.lanes if packs(spec, layouts, cut, threads) else 0
    return rounds_of_any(cut.tasks(spec, cpu.lanes), threads) * (products + copied)


def fills_blocks(channels: int, cpu: CpuInfo) -> bool:
    """Whether so many `channels` leave the last block, of as many as a vector has lanes, at most half empty."""
    return -channels % cpu.lanes <= MOST_EMPTY * channels


def vectors_of(spec: ConvSpec, cpu: CpuInfo) -> int:
    """Vectors of filters of a register tile, which are of one group; 0 where rows are not cut into tiles of any."""
    count = -(-spec.k // spec.groups // cpu.lanes)
    best = (MOST_VECTORS, VECTORS) if _is_wide(spec, cpu) else (VECTORS,)
    offered = [each for each in (*best, *OTHER_VECTORS, 1) if count % each == 0]
    return next((each for each in offered if tile_of(spec.out_w, cpu, each)), 0)


def _is_wide(spec: ConvSpec, cpu: CpuInfo) -> bool:
    """Whether tiles are of the most vectors rather than of more pixels."""
    floats = math.prod(spec.weight_shape[1:]) * cpu.lanes
    are_kept, others_are = (reads_all(vectors * floats, cpu) for vectors in (MOST_VECTORS, VECTORS))
    has_many = spec.r * spec.s == 1 and spec.out_h * spec.out_w >= MANY_PIXELS
    return cpu.has_many_registers and (are_kept or (has_many and not others_are))


def tile_of(pixels: int, cpu: CpuInfo, vectors: int = VECTORS) -> int:
    """How many of so many `pixels` are computed at once, or 0 where too many would be computed in vain.

    Their sums fit the registers beside the weights, and hide a multiply-add's latency: fewer take as long as these.
    """
    least = -(-HIDING_SUMS // vectors)

    def taken(tile: int, loading: float = 0) -> float:
        return -(-pixels // tile) * (max(tile, least) + loading)

    offered = range(min(least, pixels), min(pixels, cpu.tile_pixels(vectors)) + 1)
    tile = min(offered, key=lambda each: taken(each, loading(cpu)), default=0)
    return tile if tile and taken(tile) <= (1 + MOST_REST) * pixels else 0


def loading(cpu: CpuInfo) -> float:
    """How long a tile takes to load its weights, in the time of so many of its pixels."""
    return LOADING if cpu.has_many_registers else LOADING_OF_FEW


def channels_of(channels: int, cpu: CpuInfo, floats: int, tiles: int, vectors: int = VECTORS) -> int:
    """How many input `channels` are a block, of so many `floats` of weights each, for so many tiles of pixels."""
    most = BYTES_OF_FEW
    if cpu.has_many_registers:
        most = WHOLE_BYTES if vectors == MOST_VECTORS else BLOCK_BYTES

    def fits(each: int) -> bool:
        return 4 * floats * each <= most and floats * each <= FETCHED_LINES * LINE * tiles

    offered = [each for each in divisors(channels) if each % cpu.lanes == 0] or divisors(channels)
    return max(filter(fits, offered), default=offered[0])


def reads_all(floats: int, cpu: CpuInfo) -> bool:
    """Whether all input channels are one block, whose weights are so many `floats`."""
    return 4 * floats <= (WHOLE_BYTES if cpu.has_many_registers else BYTES_OF_FEW)
