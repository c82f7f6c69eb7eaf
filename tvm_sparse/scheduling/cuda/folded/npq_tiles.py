"""The structure of folded CUDA kernels whose blocks take NPQ tiles, or warp-row tiles, of pixels.

Outermost first::

    blockIdx.x over tiles of pixels; blockIdx.y over tiles of `filters` output channels
      threadIdx.x over the pixels of the tile
        registers = 0
        for each k-tile of `channels` input channels, in a multistage pipeline (`multistage_pipeline`)
          copy the rows that the tile needs, zeros for padding included, to shared memory
          straight-line multiply-adds
        store with bias, residual and ReLU

A tile has so many pixels that the tiles are a multiple of the multiprocessors; see `conv2d_npq`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d_npq import NpqTiles, conv2d_npq
from tvm_sparse.conv.output_tiling import PixelTiling
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.folded.bank_conflicts import row_floats, row_stride
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KernelCounts, KTile, OutputTile, Pipeline, kernel_counts
from tvm_sparse.scheduling.cuda.folded.occupancy import ACCUMULATORS, Fold, FoldedCudaSpace
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import annotated, stage_input
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.gpu import GpuInfo

# Threads of a block, each with one pixel, that tiles are chosen near; at most.
THREADS = (384, 768, 256, 512, 320, 128)
MAX_PIXELS = 1024
# Of many tiles each is whole warps: otherwise the writes of each warp begin and end amid 32 bytes of DRAM.
WARP = 32
# Beyond this width of maps an NPQ tile's halo is many more rows than a spatial tile's.
MAX_WIDTH = 128


def npq_tilings(spec: ConvSpec, gpu: GpuInfo) -> list[NpqTiles]:
    """Tilings worth a space, most promising first."""
    if spec.out_w > MAX_WIDTH:
        return []
    # Two tiles of output channels share the multiprocessors.
    share = gpu.multiprocessors // 2
    found: list[NpqTiles] = []
    for threads in THREADS:
        count = -(-spec.pixels // min(threads, spec.pixels))
        pixels = -(-spec.pixels // count)
        # Few tiles stay as they are: rounded up, blocks of a small batch would have hardly any threads.
        if count * 2 > share:
            pixels = -(-spec.pixels // (-(-count // share) * share) // WARP) * WARP
        tiles = NpqTiles(spec, pixels)
        if tiles not in found and pixels <= MAX_PIXELS:
            found.append(tiles)
    return found


def channel_floats(tiles: PixelTiling) -> int:
    """Shared memory of one input channel of a tile, elements."""
    return tiles.input_rows * row_floats(tiles, row_stride(tiles))


def channel_bytes(tiles: PixelTiling) -> int:
    """The same in bytes."""
    return tiles.element_bytes * channel_floats(tiles)


def npq_counts(
    tiles: PixelTiling, folding: Fold, filters: int, channels: int, pipeline: Pipeline, splits: int = 1
) -> KernelCounts:
    """What decisions make of a tiling."""
    output = OutputTile(tiles.pixels, filters, 1, tiles.count)
    nest = (channels, tiles.input_rows, tiles.copies)
    k_tile = KTile(channels, channels * channel_bytes(tiles), nest, tiles.lanes)
    return kernel_counts(tiles.spec, folding.pattern, output, k_tile, pipeline, splits)


class NpqSpace(FoldedCudaSpace):
    """The folded space of one tiling."""

    def __init__(self, name: str, tiles: PixelTiling, folding: Fold):
        self.tiles, spec = tiles, tiles.spec
        candidates = {
            "filters": divisors(spec.k // spec.groups, ACCUMULATORS),
            "channels": divisors(spec.weight_shape[1], folding.gpu.shared_bytes // channel_bytes(tiles)),
            **folding.pipelines,
        }
        super().__init__(name, tiles.variant, partial(conv2d_npq, tiles), candidates, folding)

    def tile_counts(self, tile: Sequence[Any], pipeline: Pipeline) -> KernelCounts:
        filters, channels = tile
        return npq_counts(self.tiles, self.folding, filters, channels, pipeline)

    def schedule_with(self, sch: Schedule, decisions: Sequence[Any]) -> None:
        conv, pack, out = sch.get_sblock("conv"), sch.get_sblock("pack"), sch.get_sblock("out")
        sch.set_scope(conv, 0, "local")
        (filters, channels), pipeline = self.parted(decisions)
        tile, k, pixel, c, r, s = sch.get_loops(conv)
        k_outer, k_inner = sch.split(k, [None, filters])
        c_outer, c_inner = sch.split(c, [None, channels])
        sch.reorder(tile, k_outer, pixel, c_outer, c_inner, r, s, k_inner)
        for loop, axis in ((tile, "blockIdx.x"), (k_outer, "blockIdx.y"), (pixel, "threadIdx.x")):
            sch.bind(loop, axis)
        sch.reverse_compute_at(out, pixel, preserve_unit_loops=True)
        stage_input(sch, pack, c_outer, row_stride(self.tiles))
        annotated(sch, c_outer, c_inner, pipeline.marks)
        # Last: once a reduction is split in two, loops around it can no longer be bound.
        init = sch.decompose_reduction(conv, c_outer)
        for loop in [sch.get_loops(init)[-1], *sch.get_loops(out)[-2:]]:
            sch.unroll(loop)
