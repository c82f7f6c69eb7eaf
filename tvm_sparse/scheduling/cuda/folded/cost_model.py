"""A first estimate of a folded CUDA kernel's time, and what a learned cost model is told of it.

A folded kernel is bound by its instruction stream, and where it has little code a thread by copies. What follows from
the machine's facts comes from `GpuInfo`, what had to be measured or fitted from `Fit`. On cards that nothing was fitted
on, cycles and bytes a cycle are taken to be those of the H200.
"""

import math
from typing import Any

import numpy as np

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import DependentLaunch
from tvm_sparse.scheduling.cuda.folded.cost_model_fit import FITS, Fit, fitted_on
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KernelCounts
from tvm_sparse.target.gpu import GpuInfo

# Registers beside its accumulators that a thread takes where it may (assumed; the fit hardly depends on it).
_OTHER_REGISTERS = 24
# Of an instruction that is executed for the first time since its code was displaced, on top of a warm one's: the median
# of 137 kernels at batch 1 on an H200 (tuning_logs/nvidia-h200/networks-batch1), a tenth of which lie above 25.
_FIRST_CYCLES = 4


def time_us(counts: KernelCounts, gpu: GpuInfo, fit: Fit | None = None) -> Any:
    """Estimated time, in a row of kernels of its like, warm; with the constants of `fitted_on` where none are given.

    A number, or an array where `counts` are those of several kernels (`KernelCounts.together`).
    """
    each = _Estimate(counts, gpu, fit or FITS[fitted_on(gpu)])
    warm = each.warm_cycles()
    waiting = np.ceil(each.waves) * each.waiting_cycles()
    cycles = each.waves * warm + waiting + each.cold_cycles(warm)
    floor_us = _floor_us(counts.flops, counts.traffic_bytes, gpu)
    # What DRAM delivers is hidden in part.
    return (np.hypot(cycles / gpu.clock_hz * 1e6, floor_us) + each.fit.launch_us) * each.starting_early()


def first_code_us(counts: KernelCounts, gpu: GpuInfo) -> float:
    """What is added in a model, whose other layers displace a kernel's code between two calls.

    A large batch makes several waves of blocks, of which those behind the first find the code: of such kernels it was
    10 to 20% of their time.
    """
    waves = max(1.0, _Estimate(counts, gpu, FITS[fitted_on(gpu)]).waves)
    return counts.instructions * _FIRST_CYCLES / gpu.clock_hz * 1e6 / waves


def features(counts: KernelCounts, gpu: GpuInfo) -> list[float]:
    """The counts in the form a regression takes them, the estimate among them."""
    each = _Estimate(counts, gpu, FITS[fitted_on(gpu)])
    filled = each.share / each.active_blocks
    last = math.ceil(filled) / filled
    sizes = (
        counts.threads,
        counts.filters * counts.pixels,
        counts.filters,
        counts.blocks,
        counts.tiles,
        counts.splits,
        counts.channels,
        counts.k_tiles,
        counts.instructions,
        counts.instructions / counts.k_tiles,
        counts.code_bytes * counts.tiles * counts.splits,
        counts.loads,
        counts.loads * counts.floats,
        counts.copied_bytes,
        counts.copies,
        counts.addresses,
        counts.shared_bytes,
        time_us(counts, gpu),
        filled,
    )
    idle = 1 - counts.threads / (-(-counts.threads // 128) * 128)
    return [
        *(math.log2(1 + size) for size in sizes),
        idle,
        last,
        each.resident_blocks,
        counts.pixels,
        counts.rotated,
        counts.pipeline.dependent_launch == DependentLaunch.LAST_K_TILE,
        counts.pipeline.dependent_launch == DependentLaunch.AT_ONCE,
    ]


def floor_us(spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo) -> float:
    """What no exact kernel undercuts: flops of the non-zeros, or bytes of input and output."""
    return float(_floor_us(spec.sparse_flops(pattern.nnz), spec.traffic_bytes, gpu))


def _floor_us(flops: int, moved_bytes: int, gpu: GpuInfo) -> Any:
    return np.maximum(flops / gpu.flops_s, moved_bytes / gpu.dram_bytes_s) * 1e6


class _Estimate:
    """The quantities behind an estimate; "active" are the thread blocks that a multiprocessor has at once.

    They are numbers, or arrays of all kernels of a space: thousands are estimated before one is chosen.

    * `available_registers`: that a thread may have, with as many blocks on a multiprocessor as it should hold.
    * `resident_blocks`, `active_blocks`: thread blocks that a multiprocessor holds at once; fewer are active where
      there are few in all.
    * `share`: thread blocks for each multiprocessor, one after the other or at once.
    * `waves`: how often the busiest multiprocessor is filled.
    """

    def __init__(self, counts: KernelCounts, gpu: GpuInfo, fit: Fit):
        self.counts, self.gpu, self.fit = counts, gpu, fit
        self.code_bytes = counts.code_bytes
        self.all_code_bytes = self.code_bytes * counts.tiles * counts.splits
        usable = gpu.multiprocessors if counts.splits <= 2 else gpu.cluster_multiprocessors
        self.share = counts.blocks * counts.tiles * counts.splits / usable
        self.available_registers = gpu.launch_registers(counts.threads, counts.pipeline.resident)
        self.resident_blocks = self._resident_blocks()
        self.active_blocks = np.minimum(self.resident_blocks, np.ceil(self.share))
        self.waves = np.ceil(self.share) / self.active_blocks

    def _resident_blocks(self) -> Any:
        """Thread blocks that a multiprocessor holds at once, as registers and shared memory allow.

        `resident` asks for as many at least; a kernel that takes fewer registers has more.
        """
        counts, gpu = self.counts, self.gpu
        wanted = -(-(counts.filters * counts.pixels + _OTHER_REGISTERS) // 8) * 8
        registers = np.minimum(self.available_registers, wanted)
        warps = np.minimum(4 * (gpu.quarter_registers // (32 * registers)), gpu.warps)
        # The fit counted what one block may have, less than what all have together by what one of them is charged.
        by_shared = gpu.block_shared_bytes // (counts.shared_bytes + gpu.reserved_bytes)
        return np.clip(np.minimum(warps // counts.warps, by_shared), 1, gpu.blocks)

    def starting_early(self) -> Any:
        """How many times as long it takes as one that lets the next start at its exit."""
        counts, fit, launch = self.counts, self.fit, self.counts.pipeline.dependent_launch
        is_apart = (counts.splits == 1) & (self.share <= 0.5)
        is_little = self.all_code_bytes <= self.gpu.instruction_cache_bytes[0]
        is_alike = (counts.tiles * counts.splits == 1) | is_little
        at_last = np.where(is_apart, fit.apart, fit.mixed)
        at_once = np.where(is_alike, fit.alike, fit.mixed)
        of_these = np.where(launch == DependentLaunch.AT_ONCE, at_once, 1.0)
        return np.where(launch == DependentLaunch.LAST_K_TILE, at_last, of_these)

    def warm_cycles(self) -> Any:
        """Of all active blocks, their code in the caches: arithmetic and copies."""
        counts, fit, active = self.counts, self.fit, self.active_blocks
        is_large = self.code_bytes > self.gpu.instruction_cache_bytes[0]
        # Of an instruction of warm code, where blocks share what is fetched.
        fetch = np.take(fit.fetch_cycles, sum(self.code_bytes > each for each in self.gpu.instruction_cache_bytes))
        fetch = fetch * np.where(is_large, active**fit.drift, 1)
        issue = np.maximum(
            counts.instructions * np.maximum(active * counts.warps / 4, fetch),
            active * counts.loads * counts.floats * counts.warps,
        )
        issue *= self._slower_rotated * np.where(counts.registers > self.available_registers, fit.cramped, 1)
        copies = self._copy_cycles(counts.copied_bytes)
        overlapping = (issue**fit.overlap + copies**fit.overlap) ** (1 / fit.overlap)
        return np.where(active == 1, issue + copies, overlapping)

    @property
    def _slower_rotated(self) -> Any:
        """How many times as long code takes where blocks are at different k-tiles."""
        return np.where(self.counts.rotated, self.fit.slower_rotated, 1)

    def _copy_cycles(self, copied_bytes: float) -> Any:
        """Of the copies of all active blocks, each so many bytes."""
        rate = np.minimum(self.gpu.copy_bytes_cycle, self.fit.copied_together_bytes * np.maximum(1.0, 1 / self.share))
        return self.active_blocks * copied_bytes / rate

    def waiting_cycles(self) -> Any:
        """Of all active blocks: their start until the first k-tile is there, barriers, and their partial sums."""
        counts, fit = self.counts, self.fit
        # Behind each barrier warps wait for copies, less where these run further ahead.
        barriers = counts.k_tiles * fit.barrier_cycles / counts.pipeline.stages
        sums = 4 * counts.filters * counts.pixels * counts.threads * (counts.splits - 1) / counts.splits
        start = fit.block_cycles + self._copy_cycles(counts.copied_bytes / counts.k_tiles)
        return start + barriers + self.active_blocks * sums / fit.joined_bytes

    def cold_cycles(self, warm_cycles: Any) -> Any:
        """What is added to those as code is executed for the first time since the last call."""
        counts, fit = self.counts, self.fit
        # Each tile's code is cold once, on every multiprocessor, as blocks that run together execute the same tile.
        rounds = np.minimum(counts.tiles, np.ceil(self.waves))
        is_apart = counts.rotated & (self.code_bytes <= self.gpu.instruction_cache_bytes[1])
        together = np.where(is_apart, 0.0, np.minimum(1.0, counts.blocks / fit.together))
        cold = counts.instructions * (fit.cold_cycles + together * (fit.cold_together_cycles - fit.cold_cycles))
        cold = np.maximum(cold * self._slower_rotated, self.all_code_bytes / rounds / fit.cold_bytes_cycle)
        kept = np.minimum(1.0, fit.kept_bytes / self.all_code_bytes)
        return rounds * np.maximum(0.0, cold - warm_cycles) * (1 - kept)
