"""Dense 3x3 convolutions on CPUs by Winograd's F(2x2, 3x3): a register tile of input tiles by vectors of filters.

Outermost first::

    parallel over images, groups of blocks of filters, groups of rows of tiles
      for each block of channels: copy the rows with padding, transform their tiles (16 vectors for four pixels)
      for each block of filters
        for each of 16 positions, each block of input channels, each register tile
          as in `nchwc`, of tiles instead of pixels
        for each tile: transform its sums, store four pixels with bias, residual and ReLU

All channels of a block are transformed at once, by additions of vectors. Where the input does not lie in blocks of
channels it is transposed as it is copied; where the output does not, all rows are transformed before they are
transposed and stored.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvm_sparse.conv.conv2d_winograd import TileBlocks, across, conv2d_winograd, down, is_served, transformed_weight
from tvm_sparse.conv.nchwc import Layouts
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.winograd_filter import TILE
from tvm_sparse.scheduling.annotations import PREFETCH, SQUARE, TRANSPOSE, VECTORS
from tvm_sparse.scheduling.cpu.blocked_space import BlockedSpace
from tvm_sparse.scheduling.cpu.cost import even_cycles, rounds, rounds_of_any, winograd_cycles
from tvm_sparse.scheduling.cpu.fit import CpuFit
from tvm_sparse.scheduling.cpu.nchwc import UNROLLED, in_registers, store_filters
from tvm_sparse.scheduling.cpu.nchwc_cut import block_of, fills_blocks
from tvm_sparse.scheduling.cpu.register_tile import VECTORS as OF_TILE
from tvm_sparse.scheduling.cpu.register_tile import pixels_of_tile, vectors_of_tile
from tvm_sparse.scheduling.space import Choose, divisors
from tvm_sparse.target.cpu_info import CpuInfo


class WinogradSpace(BlockedSpace):
    """The space of a convolution that it `computes`."""

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int = 1):
        spec = replace(spec, k=layouts.filled(spec.k)) if layouts.y else spec
        super().__init__(name, spec, cpu, layouts, threads)
        self.cut, self._group = best_task(spec, cpu, threads)
        self._vectors = self.cut.filters // cpu.lanes

    def _unscheduled(self) -> tirx.PrimFunc:
        return conv2d_winograd(self.spec, self.cut, self.layouts, self._cpu.lanes)

    @staticmethod
    def computes(spec: ConvSpec, cpu: CpuInfo) -> bool:
        """Whether it can be computed so: by 3x3 taps beside each other, and rows are cut into tiles."""
        return is_served(spec) and bool(_cuts(spec, cpu))

    @classmethod
    def writes(cls, spec: ConvSpec, cpu: CpuInfo) -> bool:
        return cpu.has_block_kernels and fills_blocks(spec.k, cpu) and cls.computes(spec, cpu)

    @staticmethod
    def reads(spec: ConvSpec, cpu: CpuInfo) -> bool:
        return fills_blocks(spec.c, cpu)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight transformed, in the order of its use."""
        return (transformed_weight(weight, self.cut),)

    @property
    def cost(self) -> float:
        """Estimated time, as a multiple of that of the multiply-adds of a direct convolution, shared evenly."""
        spec, cpu, threads = self.spec, self._cpu, self._threads
        busiest = min(rounds(_tasks(spec, *each), threads) * _cycles(spec, cpu, *each) for each in _offered(spec, cpu))
        return busiest * threads / even_cycles(spec, cpu, self.cut.tiles)

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        sums, conv, tiles = map(sch.get_sblock, ("sums", "conv", "tiles"))
        outer, block, place = self._schedule_blocks(sch) if self.layouts.y else self._schedule_rows(sch)
        sch.parallel(outer)
        sch.compute_at(sums, place, preserve_unit_loops=True)
        self._schedule_sums(sch)
        sch.compute_at(conv, block, preserve_unit_loops=True)
        self._schedule_conv(sch)
        sch.compute_at(tiles, outer, preserve_unit_loops=True)
        i, j, channels, tile, lane = sch.get_loops(tiles)[-5:]
        sch.reorder(channels, tile, i, j, lane)
        in_registers(sch, i, j, lane)
        self._schedule_pack(sch, channels)

    def _schedule_blocks(self, sch: Schedule) -> tuple[LoopRV, LoopRV, LoopRV]:
        """Order the stores to blocks; returns the loops over tasks, blocks of filters, and tiles of a row."""
        n, k, y, x, lane = sch.get_loops(sch.get_sblock("out"))
        k, block, vector = sch.split(k, [None, self._group, self._vectors])
        y, row, i = sch.split(y, [None, self.cut.rows, TILE])
        x, j = sch.split(x, [None, TILE])
        # Weights are 16 floats for nine, and read once so: with 16 threads ResNet-18 takes 0.8 of the time.
        sch.reorder(n, k, y, block, row, x, i, j, vector, lane)
        in_registers(sch, i, j, vector, lane)
        return sch.fuse(n, k, y), block, x

    def _schedule_rows(self, sch: Schedule) -> tuple[LoopRV, LoopRV, LoopRV]:
        """The same of an output that does not lie in blocks, whose sums are transformed before."""
        spec, rows = self.spec, TILE * self.cut.rows
        n, k, y, x = sch.get_loops(sch.get_sblock("out"))
        k, block, lane = sch.split(k, [None, self._group, self.cut.filters])
        y, row = sch.split(y, [None, min(rows, spec.out_h)])
        sch.reorder(n, k, y, block, row, x, lane)
        outer = sch.fuse(n, k, y)
        # Whether the last group has a row is asked outside of the loop over its pixels.
        is_whole = spec.out_h % rows in (0, spec.out_h)
        store_filters(sch, spec, sch.fuse(row, x) if is_whole else x, lane, self._cpu.lanes)
        return outer, block, block

    def _schedule_sums(self, sch: Schedule) -> None:
        """Transform all four pixels of a tile at once."""
        *rest, lane = sch.get_loops(sch.get_sblock("sums"))
        if self.layouts.y:
            i, j = rest[-2:]
        else:
            (y, i), (x, j) = (sch.split(each, [None, TILE]) for each in rest[-2:])
            sch.reorder(y, x, i, j, lane)
        vector, lane = sch.split(lane, [None, self._cpu.lanes])
        sch.reorder(vector, i, j, lane)
        in_registers(sch, vector, i, j, lane)

    def _schedule_conv(self, sch: Schedule) -> None:
        """Order the multiply-adds."""
        cut, conv = self.cut, sch.get_sblock("conv")
        i, j, tile, lane, c = sch.get_loops(conv)[-5:]
        tile, inner = sch.split(tile, [None, cut.tiles])
        vector, lane = sch.split(lane, [None, self._cpu.lanes])
        together = math.gcd(self._cpu.lanes, cut.channels)
        unrolled = math.gcd(together, UNROLLED)
        parts = [None, cut.channels // together, together // unrolled, unrolled]
        c, part, channel, unrolled = sch.split(c, parts)
        sch.reorder(i, j, c, tile, part, channel, unrolled, inner, vector, lane)
        in_registers(sch, unrolled, inner, vector, lane)
        init = sch.decompose_reduction(conv, c)
        sch.annotate(tile, PREFETCH, cut.channels * cut.filters)
        for loop in sch.get_loops(init)[-3:-1]:
            sch.unroll(loop)

    def _schedule_pack(self, sch: Schedule, channels: LoopRV) -> None:
        pack = sch.get_sblock("pack")
        sch.compute_at(pack, channels, preserve_unit_loops=True)
        *_, column, lane = sch.get_loops(pack)
        sch.vectorize(lane)
        if not self.layouts.x:
            sch.annotate(column, VECTORS, SQUARE)
            sch.annotate(column, TRANSPOSE, 1)
            sch.compute_at(sch.get_sblock("padding"), channels, preserve_unit_loops=True)


def best_task(spec: ConvSpec, cpu: CpuInfo, threads: int) -> tuple[TileBlocks, int]:
    """The cut, and blocks of filters of a task, by which the busiest thread ends first."""

    def key(task: tuple[TileBlocks, int]) -> tuple[float, int, int]:
        cut, group = task
        return rounds_of_any(_tasks(spec, *task), threads) * _cycles(spec, cpu, *task), -cut.rows, -group

    return min(_offered(spec, cpu), key=key)


def _offered(spec: ConvSpec, cpu: CpuInfo) -> list[tuple[TileBlocks, int]]:
    return [(cut, group) for cut in _cuts(spec, cpu) for group in divisors(cut.count(spec))]


def _tasks(spec: ConvSpec, cut: TileBlocks, group: int) -> int:
    """How many there are with `group` blocks of filters each."""
    return spec.n * (down(spec) // cut.rows) * (cut.count(spec) // group)


def _cycles(spec: ConvSpec, cpu: CpuInfo, cut: TileBlocks, group: int) -> float:
    """Of a task."""
    return winograd_cycles(spec, cpu, cut.filters // cpu.lanes, cut.columns(spec), cut.tiles, group)


def _cuts(spec: ConvSpec, cpu: CpuInfo) -> Sequence[TileBlocks]:
    """By how many rows of tiles that are cut into register tiles."""
    found = []
    vectors = vectors_of_tile(-(-spec.k // cpu.lanes), [OF_TILE])[0]
    for rows in divisors(down(spec)):
        tiles = rows * across(spec)
        if (tile := pixels_of_tile(tiles, cpu, vectors)) > 0:
            filters = cpu.lanes * vectors
            channels = block_of(spec.c, cpu, filters, -(-tiles // tile), CpuFit.of(cpu).block_bytes)
            found.append(TileBlocks(filters, channels, rows, tile))
    return found
