"""The structure that folded and dense CUDA kernels share: a block of threads on one tile of the output.

Outermost first::

    blockIdx.x over images, tiles of columns and tiles of rows; blockIdx.y over tiles of `filters` output channels
      threadIdx.z, y, x over images, rows and columns of the tile; a thread has `pixels` rows one below the other
        registers = 0
        for each chunk of `channels` input channels
          copy the chunk's input tile, zeros for padding included, to shared memory
          multiply-adds, straight-line where folded
        store with bias, residual and ReLU

In mode "async" the chunks' copies run two chunks ahead of the arithmetic (``cp.async``, three buffers); in mode "plain"
they take turns. blockIdx.y varies slowest, so that blocks that run together execute the same code. The distance of rows
in shared memory is the one with the fewest bank conflicts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_sparse.compute import Tiles, conv2d_tiles
from tvm_sparse.conv import ConvSpec
from tvm_sparse.fold import FOLD
from tvm_sparse.schedules.base import Space, divisors, nearest, no_constants, sample, weight_itself

# Threads of a block at most, and about how many the defaults aim at.
MAX_THREADS, THREADS = 512, 256
# Bytes of shared memory that a block has on every architecture with asynchronous copies, less the weights' share.
MAX_SHARED = 96 * 1024
# Accumulators of a thread at most; more spill.
MAX_ACCUMULATORS = 64
# Blocks that keep a large GPU busy; fewer output channels a thread make more blocks.
BLOCKS = 128
# Buffers of the ring in mode "async".
RING = 3


@dataclass(frozen=True)
class Plan:
    """Candidates and defaults of one structure's decisions.

    Parameters
    ----------
    tiles, pixels, mode
        What the search does not change.
    filters, rows, images, channels
        (candidates, default): output channels a thread, thread rows and images a block, input channels a chunk.
        Every combination is within the limits of threads and shared memory.
    row_stride
        Floats from one row of a tile to the next in shared memory, modulo 32.
    """

    tiles: Tiles
    pixels: int
    mode: str
    filters: tuple[list[int], int]
    rows: tuple[list[int], int]
    images: tuple[list[int], int]
    channels: tuple[list[int], int]
    row_stride: int

    @property
    def variant(self) -> str:
        """Name of the structure."""
        return f"{self.mode}-columns{self.tiles.columns}-pixels{self.pixels}"


def layouts(spec: ConvSpec, pixels: int) -> list[Tiles]:
    """Ways to cut the output, most promising first: little waste, and blocks of about `THREADS` threads."""
    found = set()
    for count in range(1, spec.out_w + 1):
        columns = -(-spec.out_w // count)
        columns = columns if count == 1 else -(-columns // 4) * 4
        if columns <= MAX_THREADS and (count == 1 or columns >= 16):
            rows = range(-(-spec.out_h // pixels) * pixels, spec.out_h + 8 * pixels, pixels)
            found.add(min((Tiles(each, columns) for each in rows), key=lambda tiles: _cost(spec, tiles, pixels)))
    return sorted(found, key=lambda tiles: (_cost(spec, tiles, pixels), tiles))


def _cost(spec: ConvSpec, tiles: Tiles, pixels: int) -> float:
    """Computed and copied pixels for each useful one, dearer where no block has about `THREADS` threads."""
    waste = tiles.rows / spec.out_h * tiles.columns * tiles.count(spec) / spec.out_w
    rows = nearest(divisors(tiles.rows // pixels), THREADS / tiles.columns)
    threads = rows * tiles.columns
    idle = -threads % 32 / threads
    halo = tiles.width(spec) / (tiles.columns * spec.stride[1])
    size = max(threads / THREADS, THREADS / threads)
    return waste * (1 + idle) * (1 + 0.1 * (halo - 1)) * (1 + 0.1 * (size - 1))


def plan(spec: ConvSpec, tiles: Tiles, pixels: int, mode: str, multiply_adds: float) -> Plan | None:
    """Decisions for one structure, or None where a block of it has no room.

    Parameters
    ----------
    multiply_adds
        Instructions between two barriers that the default aims at, divided by the weight's density.
    """
    buffers = RING if mode == "async" else 1
    bank_stride = _bank_stride(spec, tiles, pixels)
    thread_rows = tiles.rows // pixels
    small = tiles.columns * thread_rows <= THREADS // 2
    chunk = spec.weight_shape[1]

    def shared(rows: int, images: int, channels: int) -> int:
        height = (rows * pixels - 1) * spec.stride[0] + (spec.r - 1) * spec.dilation[0] + 1
        return 4 * buffers * images * channels * height * (tiles.width(spec) + 32)

    rows = [thread_rows] if small else divisors(thread_rows, MAX_THREADS // tiles.columns)
    rows = [each for each in rows if shared(each, 1, 1) <= MAX_SHARED]
    if not rows:
        return None
    images = divisors(spec.n, max(1, MAX_THREADS // (tiles.columns * rows[-1]))) if small else [1]
    images = [each for each in images if shared(rows[-1], each, 1) <= MAX_SHARED]
    channels = [each for each in divisors(chunk) if shared(rows[-1], images[-1], each) <= MAX_SHARED]
    rows_default = nearest(rows, THREADS / tiles.columns)
    images_default = nearest(images, THREADS / 2 / (tiles.columns * rows_default))
    pixel_blocks = spec.n // images_default * tiles.count(spec) * (thread_rows // rows_default)
    filters = divisors(spec.k // spec.groups, MAX_ACCUMULATORS // pixels)
    busy = [each for each in filters if pixel_blocks * (spec.k // each) >= BLOCKS]
    filters_default = busy[-1] if busy else nearest(filters, 4)
    wish = multiply_adds / (filters_default * pixels * spec.r * spec.s)
    return Plan(
        tiles,
        pixels,
        mode,
        (filters, filters_default),
        (rows, rows_default),
        (images, images_default),
        (channels, nearest(channels, wish)),
        bank_stride,
    )


def _bank_stride(spec: ConvSpec, tiles: Tiles, pixels: int) -> int:
    """The distance of rows, modulo the 32 banks, with which a warp's reads conflict least; whole copies."""
    lanes, (st_h, st_w) = tiles.lanes(spec), spec.stride

    def conflicts(stride: int) -> int:
        total = 0
        for warp in range(8):
            places = {divmod(thread, tiles.columns) for thread in range(warp * 32, warp * 32 + 32)}
            banks = Counter((row * pixels * st_h * stride + column * st_w) % 32 for row, column in places)
            total += max(banks.values())
        return total

    return min(range(0, 32, lanes), key=lambda stride: (conflicts(stride), (stride - tiles.width(spec)) % 32))


def tile_space(name: str, spec: ConvSpec, plan: Plan, fold: bool) -> Space:
    """The space of one plan, folded or with the weight (K, C / groups, R, S) as an argument."""
    return Space(
        schedule=name,
        variant=plan.variant,
        func=conv2d_tiles(spec, plan.tiles),
        apply=lambda sch: _schedule(sch, spec, plan, fold),
        fold=fold,
        constants=no_constants if fold else weight_itself,
    )


def _schedule(sch: Schedule, spec: ConvSpec, plan: Plan, fold: bool) -> None:
    conv, pack, out = sch.get_sblock("conv"), sch.get_sblock("pack"), sch.get_sblock("out")
    sch.set_scope(conv, 0, "local")
    sch.set_scope(pack, 0, "shared.dyn")
    weight = None if fold else sch.cache_read(conv, 1, "shared")
    filters, rows = sample(sch, *plan.filters), sample(sch, *plan.rows)
    images, channels = sample(sch, *plan.images), sample(sch, *plan.channels)

    n, k, tile, y, x, c, r, s = sch.get_loops(conv)
    n_outer, n_inner = sch.split(n, [None, images])
    k_outer, k_inner = sch.split(k, [None, filters])
    y_outer, y_thread, y_inner = sch.split(y, [None, rows, plan.pixels])
    c_outer, c_inner = sch.split(c, [None, channels])
    sch.reorder(n_outer, tile, y_outer, k_outer, n_inner, y_thread, x, c_outer, c_inner, r, s, k_inner, y_inner)
    sch.bind(sch.fuse(n_outer, tile, y_outer), "blockIdx.x")
    sch.bind(k_outer, "blockIdx.y")
    for loop, axis in ((n_inner, "threadIdx.z"), (y_thread, "threadIdx.y"), (x, "threadIdx.x")):
        sch.bind(loop, axis)
    sch.reverse_compute_at(out, x, preserve_unit_loops=True)

    threads = [images, rows, plan.tiles.columns]
    lane = _stage(sch, pack, c_outer, 6, threads)
    sch.vectorize(lane)
    sch.storage_align(pack, 0, axis=-3, factor=32, offset=plan.row_stride)
    if weight is None:
        sch.annotate(c_inner, FOLD, 1)
    else:
        _stage(sch, weight, c_outer, 4, threads)
        sch.unroll(k_inner)
        sch.unroll(y_inner)
    if plan.mode == "async":
        copies = [0] if weight is None else [0, 0]
        sch.annotate(c_outer, "software_pipeline_stage", [*copies, RING - 1])
        sch.annotate(c_outer, "software_pipeline_order", list(range(len(copies) + 1)))
        sch.annotate(c_outer, "software_pipeline_async_stages", [0])
    # Last: once a reduction is split in two, loops around it can no longer be bound.
    init = sch.decompose_reduction(conv, c_outer)
    for loop in [*sch.get_loops(init)[-2:], *sch.get_loops(out)[-4:]]:
        sch.unroll(loop)


def _stage(sch: Schedule, block: SBlockRV, chunk: LoopRV, axes: int, threads: list) -> LoopRV:
    """Let all threads of a thread block copy a chunk of `block`'s `axes`-dimensional buffer; returns its last loop.

    The last axis of the input's six is left to each thread.
    """
    sch.compute_at(block, chunk, preserve_unit_loops=True)
    loops = sch.get_loops(block)[-axes:]
    shared = loops[:-1] if axes == 6 else loops
    _, z, y, x = sch.split(sch.fuse(*shared), [None, *threads])
    for loop, axis in ((z, "threadIdx.z"), (y, "threadIdx.y"), (x, "threadIdx.x")):
        sch.bind(loop, axis)
    return loops[-1]
