"""Dense 3x3 convolutions on CPUs by Winograd's F(2x2, 3x3), whose tensors lie in blocks of channels.

Outermost first::

    parallel over images, groups of blocks of filters, groups of rows of tiles
      for each block of channels: copy the rows with padding, transform their tiles (16 vectors for four pixels)
      for each block of filters
        for each of 16 positions, each block of input channels, each register tile
          as in `nchwc`, of tiles instead of pixels
        for each tile: transform its sums, store four pixels with bias, residual and ReLU

All channels of a block are transformed at once, by additions of vectors; `winograd` transforms some tiles of one
channel at once, which are shuffled from neighbours, and transposes its output.
"""

from functools import partial

import numpy as np
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvm_sparse.conv.conv2d_winograd import TileBlocks, across, down, is_served, transformed_weight
from tvm_sparse.conv.conv2d_winograd_nchwc import conv2d_winograd_nchwc
from tvm_sparse.conv.nchwc import Layouts
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.winograd_filter import READ, TILE
from tvm_sparse.scheduling.annotations import PREFETCH
from tvm_sparse.scheduling.cpu.cuts import rounds_of_any
from tvm_sparse.scheduling.cpu.filters import UNROLLED
from tvm_sparse.scheduling.cpu.nchwc import in_registers
from tvm_sparse.scheduling.cpu.nchwc_cut import VECTORS, channels_of, loading, tile_of
from tvm_sparse.scheduling.cpu.winograd import in_caches
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, divisors
from tvm_sparse.target.cpu_info import CpuInfo

# How long reading a block's weights takes, in the time of so many tiles; and transforming a tile of a block of channels
# and of a vector of filters, in multiply-adds of a block of filters.
READING, INPUT, OUTPUT = 4, 70, 40
# How many times as long as in direct kernels (`nchwc_cut`) loading a register tile's weights takes.
LOADING = 2


class WinogradNCHWcSpace(HandMadeSpace):
    """The space of a convolution that it `serves`, whose tensors all lie in blocks. Nothing is decided."""

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int = 1):
        self.spec, self._lanes, self._threads, self._loading = spec, cpu.lanes, threads, LOADING * loading(cpu)
        offered = [(cut, group) for cut in _cuts(spec, cpu) for group in divisors(cut.count(spec))]
        self.cut, self._group = min(offered, key=lambda task: (self._time(*task), -task[0].rows, -task[1]))
        super().__init__(name, "nchwc", partial(conv2d_winograd_nchwc, spec, self.cut, layouts), fold=False)

    @staticmethod
    def serves(spec: ConvSpec, cpu: CpuInfo) -> bool:
        """Whether it can be computed so: filters and channels fill vectors, and rows are cut into tiles.

        Only with AVX-512 and AVX2, where it was measured.
        """
        is_whole = not spec.c % cpu.lanes and not spec.k % (VECTORS * cpu.lanes)
        return cpu.has_block_kernels and is_served(spec) and is_whole and bool(_cuts(spec, cpu))

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight transformed, in the order of its use."""
        return (transformed_weight(weight, self.cut),)

    def _time(self, cut: TileBlocks, group: int) -> float:
        """Of the busiest thread, whose tasks have `group` blocks of filters, in multiply-adds of one."""
        spec, tiles = self.spec, cut.columns(self.spec)
        products = READ * READ * spec.c * (tiles * (1 + self._loading / cut.tiles) + READING) * in_caches(spec, tiles)
        transforms = INPUT * spec.c / self._lanes * tiles + OUTPUT * VECTORS * tiles * group
        tasks = spec.n * (down(spec) // cut.rows) * (cut.count(spec) // group)
        return rounds_of_any(tasks, self._threads) * (products * group + transforms)

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        sums, conv, tiles = map(sch.get_sblock, ("sums", "conv", "tiles"))
        outer, block, column = self._schedule_out(sch)
        sch.parallel(outer)
        sch.compute_at(sums, column, preserve_unit_loops=True)
        i, j, lane = sch.get_loops(sums)[-3:]
        vector, lane = sch.split(lane, [None, self._lanes])
        sch.reorder(vector, i, j, lane)
        in_registers(sch, vector, i, j, lane)
        sch.compute_at(conv, block, preserve_unit_loops=True)
        self._schedule_conv(sch)
        sch.compute_at(tiles, outer, preserve_unit_loops=True)
        i, j, channels, tile, lane = sch.get_loops(tiles)[-5:]
        sch.reorder(channels, tile, i, j, lane)
        in_registers(sch, i, j, lane)
        pack = sch.get_sblock("pack")
        sch.compute_at(pack, channels, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(pack)[-1])

    def _schedule_out(self, sch: Schedule) -> tuple[LoopRV, LoopRV, LoopRV]:
        """Order the stores; returns the loops over tasks, blocks of filters, and tiles of a row."""
        n, k, y, x, lane = sch.get_loops(sch.get_sblock("out"))
        k, block, vector = sch.split(k, [None, self._group, VECTORS])
        y, row, i = sch.split(y, [None, self.cut.rows, TILE])
        x, j = sch.split(x, [None, TILE])
        # Weights are 16 floats for nine, and read once so: with 16 threads ResNet-18 takes 0.8 of the time.
        sch.reorder(n, k, y, block, row, x, i, j, vector, lane)
        in_registers(sch, i, j, vector, lane)
        return sch.fuse(n, k, y), block, x

    def _schedule_conv(self, sch: Schedule) -> None:
        """Order the multiply-adds."""
        cut, conv = self.cut, sch.get_sblock("conv")
        i, j, tile, lane, c = sch.get_loops(conv)[-5:]
        tile, inner = sch.split(tile, [None, cut.tiles])
        vector, lane = sch.split(lane, [None, self._lanes])
        c, part, channel, unrolled = sch.split(
            c, [None, cut.channels // self._lanes, self._lanes // UNROLLED, UNROLLED]
        )
        sch.reorder(i, j, c, tile, part, channel, unrolled, inner, vector, lane)
        in_registers(sch, unrolled, inner, vector, lane)
        init = sch.decompose_reduction(conv, c)
        sch.annotate(tile, PREFETCH, cut.channels * cut.filters)
        for loop in sch.get_loops(init)[-3:-1]:
            sch.unroll(loop)


def _cuts(spec: ConvSpec, cpu: CpuInfo) -> list[TileBlocks]:
    """By how many rows of tiles that are cut into register tiles."""
    filters, found = cpu.lanes * VECTORS, []
    for rows in divisors(down(spec)):
        tiles = rows * across(spec)
        if (tile := tile_of(tiles, cpu)) > 0:
            channels = channels_of(spec.c, cpu, filters, -(-tiles // tile))
            found.append(TileBlocks(filters, channels, rows, tile))
    return found
