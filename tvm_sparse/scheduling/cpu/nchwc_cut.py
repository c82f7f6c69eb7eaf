"""How dense convolutions by vectors of filters (`nchwc`) are cut into tiles and tasks."""

import math
from dataclasses import dataclass, replace

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import Columns, Layouts
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.cost import direct_cycles, rounds_of_any
from tvm_sparse.scheduling.cpu.fit import CpuFit
from tvm_sparse.scheduling.cpu.register_tile import MOST_VECTORS, VECTORS, pixels_of_tile, vectors_of_tile
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.cpu_info import LINE, CpuInfo

# With many registers tiles are of four vectors where all channels' weights stay in a level-1 cache, and of one tap on
# so many pixels where those of two do not either: a tile of 4x7 takes 39 instructions for its products, one of 2x14
# takes 44 for as many. That is 0.84 to 1.0 of the time of 128 channels or fewer, and of 512 and more. Of 160 and 256
# two vectors keep their sums in registers, and four take 1.05 times as long; so they do on 7x7, for which weights are
# read anew.
MANY_PIXELS = 100
# Channels that fill the last block of a tensor at most, as a share of the others: eight are in a block of 16.
MOST_EMPTY = 1
# Pixels of a task at most.
PIXELS = 784


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

    def blocks(self, spec: ConvSpec, lanes: int) -> int:
        """Blocks of filters, the last with as many as are left."""
        return -(-spec.k // (lanes * self.vectors))

    def tasks(self, spec: ConvSpec, lanes: int) -> int:
        """How many there are."""
        return spec.n * -(-spec.out_h // self.rows) * (self.blocks(spec, lanes) // self.group)


def best_cut(
    spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int, joins_rows: bool = True
) -> tuple[ConvSpec, Cut]:
    """The cut by which the busiest thread ends first, of `spec` or, if it `joins_rows`, of `long_rows` of it."""
    forms = long_rows(spec) if joins_rows else [spec]
    offered = [(each, cut) for each in forms for cut in _cuts(each, cpu, layouts)]

    def cost(of: tuple[ConvSpec, Cut]) -> tuple[float, int, int]:
        long, cut = of
        busiest = rounds_of_any(cut.tasks(long, cpu.lanes), threads) * task_cycles(long, cpu, layouts, threads, cut)
        return busiest, -cut.group, -cut.rows * long.out_w

    return min(offered, key=cost)


def _cuts(spec: ConvSpec, cpu: CpuInfo, layouts: Layouts) -> list[Cut]:
    most = max(1, PIXELS // spec.out_w)
    rows = sorted({-(-spec.out_h // groups) for groups in range(1, spec.out_h + 1)} & {*range(1, most + 1)})
    if (vectors := vectors_of(spec, cpu, layouts.x)) == 0:
        return []
    tile = pixels_of_tile(spec.out_w, cpu, vectors, not layouts.x)
    whole = Cut(vectors, tile, 1, 1)
    return [
        replace(whole, group=group, rows=each) for group in divisors(whole.blocks(spec, cpu.lanes)) for each in rows
    ]


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
    return goes_beyond or any(spec.padding) or (not layouts.x and (threads > 1 or _had_better_pack(spec)))


def _had_better_pack(spec: ConvSpec) -> bool:
    """Whether what tiles read of channels that lie apart had better be copied, or must, whatever the threads.

    Of half precision, which is widened so, where one tap skips pixels, and where channels would displace each other
    from a level-1 cache, as they lie a multiple of four of its 64 sets apart.
    """
    skips = spec.r * spec.s == 1 and spec.stride != (1, 1)
    return spec.dtype != FLOAT32 or skips or spec.h * spec.w % 64 == 0


def task_cycles(spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int, cut: Cut) -> float:
    """Cycles of a task of one of so many threads."""
    shape = cut.vectors, cut.columns(spec).count, cut.tile, cut.group, cut.rows
    return direct_cycles(spec, cpu, *shape, packs=packs(spec, layouts, cut, threads))


def fills_blocks(channels: int, cpu: CpuInfo) -> bool:
    """Whether so many `channels` leave the last block, of as many as a vector has lanes, at most half empty."""
    return -channels % cpu.lanes <= MOST_EMPTY * channels


def vectors_of(spec: ConvSpec, cpu: CpuInfo, is_blocked: bool = True) -> int:
    """Vectors of filters of a register tile, which are of one group; 0 where rows are not cut into tiles of any.

    `is_blocked` says whether the input lies in blocks.
    """
    count = -(-spec.k // spec.groups // cpu.lanes)
    best = (MOST_VECTORS, VECTORS) if _is_wide(spec, cpu) else (VECTORS,)
    offered = vectors_of_tile(count, best)
    return next((each for each in offered if pixels_of_tile(spec.out_w, cpu, each, not is_blocked)), 0)


def _is_wide(spec: ConvSpec, cpu: CpuInfo) -> bool:
    """Whether tiles are of the most vectors rather than of more pixels."""
    floats = math.prod(spec.weight_shape[1:]) * cpu.lanes
    are_kept, others_are = (4 * each * floats <= CpuFit.of(cpu).weights_bytes for each in (MOST_VECTORS, VECTORS))
    has_many = spec.r * spec.s == 1 and spec.out_h * spec.out_w >= MANY_PIXELS
    return cpu.has_many_registers and (are_kept or (has_many and not others_are))


def channels_of(spec: ConvSpec, cpu: CpuInfo, floats: int, tiles: int, vectors: int, is_blocked: bool) -> int:
    """How many input channels are a block, of so many `floats` of weights each, for so many tiles of pixels.

    All, if a level-1 cache holds their weights; of an input that does not lie in blocks with what a tile reads.
    """
    fit, channels = CpuFit.of(cpu), spec.weight_shape[1]
    if not is_blocked:
        read = 4 * floats + fit.channel_bytes * spec.r
        return block_of(channels, cpu, floats, tiles, fit.input_block_bytes * 4 * floats // read)
    if 4 * floats * channels <= fit.weights_bytes:
        return channels
    most = fit.wide_block_bytes if vectors == MOST_VECTORS else fit.block_bytes
    return block_of(channels, cpu, floats, tiles, most)


def block_of(channels: int, cpu: CpuInfo, floats: int, tiles: int, most_bytes: int) -> int:
    """Of so many `channels` those of a block, whose weights are `most_bytes` at most and are fetched by its tiles."""
    offered = [each for each in divisors(channels) if each % cpu.lanes == 0] or divisors(channels)
    fetched = CpuFit.of(cpu).fetched_lines * LINE * tiles
    fitting = (each for each in offered if 4 * floats * each <= most_bytes and floats * each <= fetched)
    return max(fitting, default=offered[0])
