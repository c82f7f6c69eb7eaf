"""What may be decided about a kernel of `spatial_tiles`: candidates that all fit the machine, and defaults.

Candidates keep to the limits of threads and shared memory, alone and with most others; combinations that do not are
refused before they are built.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tvm_sparse.conv.conv2d_tiles import SpatialTiles
from tvm_sparse.conv.input_footprint import input_footprint
from tvm_sparse.conv.pooled import COLUMNS, why_not_pooled
from tvm_sparse.conv.pooled import FILTERS as POOLED_FILTERS
from tvm_sparse.conv.reference import WINDOW
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.folded.bank_conflicts import row_floats, row_stride
from tvm_sparse.scheduling.cuda.folded.occupancy import ACCUMULATORS, BLOCKS, blocks_default
from tvm_sparse.scheduling.space import divisors, nearest
from tvm_sparse.target.gpu import GpuInfo

# Threads of a block at most, and about how many the defaults aim at.
MAX_THREADS, THREADS = 512, 256
# Columns of a tile at least, unless the output has fewer: half a warp.
NARROW = 16
# Bytes of shared memory that a block has on every architecture with asynchronous copies, and the staged weights' share.
MAX_SHARED, MAX_WEIGHTS = 96 * 1024, 24 * 1024
# Fewer output channels a thread make more blocks, which keep a GPU busy, down to about `FILTERS`.
FILTERS = 4
# Channels of a k-tile at most where outputs are pooled: 64->64 3x3 on 224x224 took 662 us with two and 757 with four.
POOLED_CHANNELS = 2
# Buffers of the multistage pipeline in mode "async", and the fewest in mode "multistage".
BUFFERS = 3


class Choice(NamedTuple):
    """Candidates of one decision and the default among them."""

    candidates: list[int]
    default: int


@dataclass(frozen=True)
class Structure:
    """What a search does not change.

    * `tiles`: how the output is cut.
    * `pixels`: outputs of a thread, one below the other, for each of its output channels.
    * `mode`: "multistage" and "async": copies run ahead of the arithmetic; "single": they take turns; "direct": no
      copies.
    * `stages_weights`: whether the weights of a k-tile are copied to shared memory too.
    * `across`: whether blocks go through tiles of columns before tiles of rows.
    * `beside`: outputs of a thread side by side, in each of its rows. Their inputs overlap and lie side by side too, so
      that compilers load two or four floats at once: with 5x5 filters and 16 output channels a thread, two outputs take
      949 loads of shared memory where twice one output takes 2582.
    * `pools`: whether the largest of each 2x2 outputs is written (`conv.pooled`).
    * `halves`: whether the two outputs beside each other are computed together, in float16 (`codegen.tir.half_sums`).
    """

    tiles: SpatialTiles
    pixels: int
    mode: str
    stages_weights: bool = False
    across: bool = False
    beside: int = 1
    pools: bool = False
    halves: bool = False

    @property
    def variant(self) -> str:
        """Its name."""
        order, beside = "-across" if self.across else "", f"x{self.beside}" if self.beside > 1 else ""
        return f"{self.mode}-{self.tiles.variant}-pixels{self.pixels}{beside}{order}"

    @property
    def columns(self) -> int:
        """Threads of a row."""
        return self.tiles.columns // self.beside

    @property
    def thread_rows(self) -> int:
        """Rows of threads that a tile has."""
        return self.tiles.rows // self.pixels

    @property
    def buffers(self) -> int:
        """K-tiles in shared memory at a time."""
        return {"multistage": BUFFERS, "async": BUFFERS, "single": 1, "direct": 0}[self.mode]

    def shared_bytes(self, rows: int, images: int, channels: int, buffers: int | None = None) -> int:
        """Shared memory of a block with as many `buffers` as its mode needs at least, bytes, at most."""
        *outer, _ = self.nest(rows, images, channels)
        row = row_floats(self.tiles, self.row_stride)
        staged = self.tiles.element_bytes * (buffers or self.buffers) * math.prod(outer) * row
        return staged + (MAX_WEIGHTS if self.stages_weights else 0)

    def weight_bytes(self, filters: int, channels: int) -> int:
        """Shared memory of the weights that a block stages; of more than `MAX_WEIGHTS` there is no kernel."""
        spec = self.tiles.spec
        return 4 * self.buffers * spec.r * spec.s * filters * channels if self.stages_weights else 0

    def nest(self, rows: int, images: int, channels: int) -> tuple[int, ...]:
        """Extents of the copies of a k-tile, each of `tiles.lanes` elements."""
        return images, channels, self.tiles.footprint[0].span(rows * self.pixels), self.tiles.copies

    @cached_property
    def row_stride(self) -> int:
        """The distance of rows in shared memory, modulo the 32 banks."""
        tiles = replace(self.tiles, columns=COLUMNS) if self.pools else self.tiles
        return row_stride(tiles, self.pixels, self.beside)


@dataclass(frozen=True)
class Plan:
    """A structure and its decisions.

    `filters` are output channels a thread, `rows` and `images` what the threads of a block cover, `channels` input
    channels a k-tile, `blocks` thread blocks that a multiprocessor should hold at once.
    """

    structure: Structure
    filters: Choice
    rows: Choice
    images: Choice
    channels: Choice
    blocks: Choice


def layouts(spec: ConvSpec, gpu: GpuInfo, pixels: int, beside: int = 1) -> list[SpatialTiles]:
    """Ways to cut the output, most promising first: little waste, and blocks of about `THREADS` threads.

    For each width of tiles the best number of rows; where there is only one width, the second best too if it is close.
    """

    def cost(tiles: SpatialTiles) -> float:
        return _best_rows(Structure(tiles, pixels, "multistage", beside=beside), gpu)[0]

    widths = [columns for columns in _widths(spec, beside) if _divides(spec, columns, beside)]
    heights = _heights(spec, pixels)
    found = [sorted((SpatialTiles(spec, rows, columns) for rows in heights), key=cost) for columns in widths]
    best = [tiles for tiles, *_ in found]
    if len(found) == 1:
        best += [tiles for tiles in found[0][1:2] if cost(tiles) < 1.08 * cost(best[0])]
    return sorted(best, key=cost)


def serves(structure: Structure) -> bool:
    """Whether tiles cut the output as those of `layouts` do, be they among them or not."""
    spec, columns, beside = structure.tiles.spec, structure.tiles.columns, structure.beside
    whole = columns == spec.out_w or (columns % 4 == 0 and 0 < columns < spec.out_w)
    fits = structure.tiles.rows in _heights(spec, structure.pixels) and whole and columns <= beside * MAX_THREADS
    if structure.pools:
        # Whole warps store, each two rows.
        exact = structure.tiles.rows == spec.out_h and columns % COLUMNS == 0 and spec.out_w % columns == 0
        fits = fits and exact and structure.pixels == beside == 1 and not why_not_pooled(spec)
    return fits and _divides(spec, columns, beside)


def _divides(spec: ConvSpec, columns: int, beside: int) -> bool:
    """Whether threads of a tile may have so many outputs side by side; only what they read side by side is a gain."""
    return columns % beside == 0 and (beside == 1 or input_footprint(spec)[1].stride == 1)


def torn(structure: Structure, gpu: GpuInfo) -> bool:
    """Whether the 32 bytes in which memory is written are written in pieces, in an output of more than level 2.

    By neighbouring tiles, or by a warp that stores every other column at a time.
    """
    apart = side_by_side(structure.tiles, gpu) and structure.tiles.columns * structure.tiles.element_bytes % 32 != 0
    return apart or (structure.beside > 1 and _is_large(structure.tiles.spec, gpu))


def side_by_side(tiles: SpatialTiles, gpu: GpuInfo) -> bool:
    """Whether there are several tiles of columns, in an output of more than level 2."""
    return _is_large(tiles.spec, gpu) and tiles.side_by_side > 1


def _is_large(spec: ConvSpec, gpu: GpuInfo) -> bool:
    return spec.output_bytes > gpu.level_2_bytes


def _heights(spec: ConvSpec, pixels: int) -> range:
    """Rows of tiles: the output's, and a few more that may divide better."""
    return range(-(-spec.out_h // pixels) * pixels, spec.out_h + 8 * pixels, pixels)


def _widths(spec: ConvSpec, beside: int) -> list[int]:
    """Widths of tiles: the whole output's, and narrower ones in whole copies of 4 that keep a warp's rows long."""
    counts = range(2, spec.out_w // NARROW + 2)
    narrower = {-(-spec.out_w // (4 * count)) * 4 for count in counts}
    whole = {spec.out_w} if spec.out_w <= MAX_THREADS * beside else set()
    return sorted(whole | {columns for columns in narrower if NARROW <= columns <= MAX_THREADS * beside})


def _best_rows(structure: Structure, gpu: GpuInfo) -> tuple[float, int]:
    """(cost, thread rows of a block): pixels computed and copied for each useful one, dearer far from `THREADS`."""
    tiles, pixels, columns = structure.tiles, structure.pixels, structure.columns
    spec, (y, x) = tiles.spec, tiles.footprint
    waste = tiles.rows / spec.out_h * tiles.columns * tiles.side_by_side / spec.out_w * (1 + torn(structure, gpu))

    def cost(rows: int) -> float:
        threads = rows * columns
        idle = -threads % 32 / threads
        copied = tiles.width * y.span(rows * pixels) / (tiles.columns * rows * pixels * (y.stride * x.stride))
        size = max(threads / THREADS, THREADS / threads)
        return waste * (1 + idle) * (1 + 0.25 * copied) * (1 + 0.1 * (size - 1))

    return min((cost(rows), rows) for rows in divisors(structure.thread_rows, MAX_THREADS // columns))


def plan(structure: Structure, gpu: GpuInfo, multiply_adds: float) -> Plan | None:
    """The decisions of one structure, or None where a block of it does not fit into shared memory.

    By default there are about `multiply_adds` weights, zeros included, times pixels in a k-tile.
    """
    spec = structure.tiles.spec
    columns, thread_rows, pixels = structure.columns, structure.thread_rows, structure.pixels * structure.beside
    small = columns * thread_rows <= THREADS // 2
    rows = [thread_rows] if small else divisors(thread_rows, MAX_THREADS // columns)
    rows = [each for each in rows if structure.shared_bytes(each, 1, 1) <= MAX_SHARED]
    if structure.pools:
        # Windows do not leave a warp.
        rows = [each for each in rows if each % WINDOW == 0 and each * columns >= THREADS]
    filters = divisors(spec.k // spec.groups, ACCUMULATORS // pixels)
    filters = [each for each in filters if structure.weight_bytes(each, 1) <= MAX_WEIGHTS]
    filters = [each for each in filters if not structure.pools or each % POOLED_FILTERS == 0]
    if not rows or not filters:
        return None
    images = divisors(spec.n, max(1, MAX_THREADS // (columns * rows[-1]))) if small else [1]
    images = [each for each in images if structure.shared_bytes(rows[-1], each, 1) <= MAX_SHARED]
    # Of a multistage pipeline's decisions those that do not fit together are refused one by one, and so are k-tiles of
    # many input channels with many output channels: with few of either both are worth a trial.
    largest = (rows[0], images[0]) if structure.mode == "multistage" else (rows[-1], images[-1])
    channels = [
        each
        for each in divisors(spec.weight_shape[1])
        if structure.shared_bytes(*largest, each) <= MAX_SHARED
        and structure.weight_bytes(filters[0], each) <= MAX_WEIGHTS
    ]
    if structure.pools:
        channels = [each for each in channels if each <= POOLED_CHANNELS]
    rows_default = nearest(rows, _best_rows(structure, gpu)[1])
    images_default = nearest(images, THREADS / 2 / (columns * rows_default))
    tiles = structure.tiles.count // images_default * (thread_rows // rows_default)
    busy = [each for each in filters if tiles * (spec.k // each) >= gpu.cluster_multiprocessors]
    filters_default = max([nearest(filters, FILTERS), *busy])
    k_tile = multiply_adds / (filters_default * pixels * spec.r * spec.s)
    together = [each for each in channels if structure.weight_bytes(filters_default, each) <= MAX_WEIGHTS]
    return Plan(
        structure,
        filters=Choice(filters, filters_default),
        rows=Choice(rows, rows_default),
        images=Choice(images, images_default),
        channels=Choice(channels, nearest(together, k_tile)),
        blocks=Choice(BLOCKS, blocks_default(columns * rows_default * images_default, filters_default * pixels)),
    )
