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
from tvm_sparse.conv.staged_input import StagedInput, channel_group, has_whole_groups
from tvm_sparse.conv.storage import is_half
from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.scheduling.annotations import DependentLaunch
from tvm_sparse.scheduling.cuda.folded.cost_model_fit import FITS, Fit, fitted_on
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KernelCounts
from tvm_sparse.target.gpu import CARDS, GpuInfo

# Registers beside its accumulators that a thread takes where it may (assumed; the fit hardly depends on it).
_OTHER_REGISTERS = 24
# Of an instruction that is executed for the first time since its code was displaced, on top of a warm one's: the median
# of 137 kernels at batch 1 on an H200 (tuning_logs/nvidia-h200/networks-batch1), a tenth of which lie above 25.
_FIRST_CYCLES = 4
# cuDNN in half precision against TF32: 27 us against 42 for 256x256x3x3 on 14x14 maps, batch 64.
_HALF_SPEEDUP = 1.6
# What it reaches then of the tensor cores' rate, with so few filters, which leave tiles half empty, and of DRAM's.
_HALF_SHARE, _FEW_FILTERS, _FEW_FILTERS_SHARE, _HALF_BYTES_SHARE = 0.71, 64, 0.5, 0.88
# To start in half precision, 1x1 layers and others, positions that it multiplies at a time, and what these take where
# few blocks have all.
_PRODUCT_START_US, _HALF_START_US, _HALF_STEP, _HALF_STEP_US = 2.5, 4.8, 64, 0.086
# In TF32: to start, a position along C * R * S, and the share of tensor cores that so many filters or more reach.
_TF32_START_US, _TF32_STEP_US, _TF32_SHARE, _TF32_FILTERS, _TF32_VOLUMES = 4.3, 0.0024, 0.8, 256, 0.85
# How many times as long where channels are filled up to whole groups, as those of an image: 1.6 to 7.2 times, in the
# median 2.8, for 29 first layers at batch 1, 8 and 64 on an H200.
_TF32_FILLED_UP = 2.5
# The same where all taps of a row are channels of one pixel: r3d_18's first layer with one and eight films.
_TF32_ROWS_IN_ONE = 2.2
# To change a tensor's layout: the share of the bandwidth of DRAM, and what comes on top. The 37 changes of ResNet-50 at
# batch 64 on an H200 moved 1.59 GB in 477 us; in half precision seven of its layers, alone and between others in NHWC,
# differ by 1.43 to 1.57 times what that share would take.
_LAYOUT_CHANGE_SHARE, _HALF_LAYOUT_CHANGE_SHARE, _LAYOUT_CHANGE_US = 0.88, 0.6, 1.5


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


def cudnn_us(spec: ConvSpec, gpu: GpuInfo) -> float:
    """About what cuDNN takes on tensor cores without changing layouts; within a factor of two on most of Table 2.

    On cards that nothing was fitted on, it is taken to reach as much of their tensor cores and DRAM.
    """
    fit = FITS[fitted_on(gpu)]
    products_us, bytes_us = _on_tensor_cores_us(spec, gpu, fit.cudnn_flops_s, fit.cudnn_bytes_s)
    return max(products_us, bytes_us) + fit.cudnn_us


def cudnn_alone_us(spec: ConvSpec, gpu: GpuInfo) -> float:
    """About what cuDNN takes on tensor cores for a layer whose neighbours have their tensors in NCHW.

    In half precision within 0.9 and 1.13 times the time with cold code for 80% of 285 convolutions at batch 1, 8 and 64
    on an H200; for channels in groups, and fewer filters or channels than tensor cores take together, within 0.64 and
    1.41.
    """
    if spec.groups == 1 and not is_half(spec.dtype):
        return cudnn_tf32_us(spec, gpu) + conversions_us(spec, gpu)
    if has_whole_groups(spec):
        return cudnn_half_us(spec, gpu) + conversions_us(spec, gpu)
    fit = FITS[fitted_on(gpu)]
    alone_us = sum(_on_tensor_cores_us(spec, gpu, fit.alone_flops_s, fit.alone_bytes_s)) + fit.alone_us
    return alone_us + _clipping_us(spec, gpu)


def cudnn_tf32_us(spec: ConvSpec, gpu: GpuInfo) -> float:
    """About what cuDNN takes in TF32 for tensors in NHWC.

    To start, a step along C * R * S, and what moves the bytes or multiplies, for which few filters use less of the
    cores. Of 489 convolutions at batch 1, 8 and 64 on an H200 half took 0.88 to 1.21 times as long, 80% 0.74 to 1.76.
    Volumes that are read in place take less: half of 20 layers 0.83 to 1.18 times this.
    """
    flops_s = _TF32_SHARE * gpu.tf32_flops_s * min(1.0, math.sqrt(spec.k / _TF32_FILTERS))
    bytes_us = spec.traffic_bytes / (0.9 * gpu.dram_bytes_s) * 1e6
    steps_us = _TF32_STEP_US * (spec.c // spec.groups * spec.r * spec.s)
    whole_us = _TF32_START_US + steps_us + max(spec.dense_flops / flops_s * 1e6, bytes_us)
    if spec.c % channel_group(spec):
        whole_us *= _TF32_ROWS_IN_ONE if StagedInput(spec).has_rows_in_one else _TF32_FILLED_UP
    return whole_us if spec.volumes is None else _TF32_VOLUMES * whole_us


def conversions_us(spec: ConvSpec, gpu: GpuInfo) -> float:
    """What a kernel in NHWC that converts for itself takes for that."""
    # Where it writes its input anew, that stays with it.
    read = [spec.input_shape] * (not spec.c % channel_group(spec)) + [spec.output_shape] * spec.residual
    changes = [LayoutChange(shape, spec.dtype, "nhwc") for shape in read]
    changes.append(LayoutChange(spec.output_shape, spec.dtype, "nchw"))
    return sum(layout_change_us(change, gpu) for change in changes)


def cudnn_half_us(spec: ConvSpec, gpu: GpuInfo) -> float:
    """About what cuDNN takes in half precision for tensors in NHWC.

    To start, a step along C * R * S at a time, and what moves the bytes or multiplies. For 80% of 285 convolutions on
    an H200, timed without conversions, within 0.92 and 1.1 times the time at batch 1, 0.79 and 1.19 at 8, 0.68 and 1.28
    at 64.
    """
    share = _FEW_FILTERS_SHARE if spec.k <= _FEW_FILTERS else _HALF_SHARE
    products_us = spec.dense_flops / (share * 2 * gpu.tf32_flops_s) * 1e6
    bytes_us = spec.traffic_bytes / (_HALF_BYTES_SHARE * gpu.dram_bytes_s) * 1e6
    steps = spec.c // spec.groups * spec.r * spec.s / _HALF_STEP
    is_product = (spec.r, spec.s, spec.stride) == (1, 1, (1, 1))
    start_us = _PRODUCT_START_US if is_product else _HALF_START_US
    return start_us + _HALF_STEP_US * steps + max(products_us, bytes_us) + _clipping_us(spec, gpu)


def _clipping_us(spec: ConvSpec, gpu: GpuInfo) -> float:
    """What a ReLU with a largest value takes, for which cuDNN reads and writes the output again."""
    return 2 * spec.output_bytes / gpu.dram_bytes_s * 1e6 if spec.is_clipped else 0.0


def _on_tensor_cores_us(spec: ConvSpec, gpu: GpuInfo, flops_s: float, bytes_s: float) -> tuple[float, float]:
    """Of products and of what is moved, at rates of the card that was fitted on."""
    measured = next(each for each in CARDS if each.name == fitted_on(gpu))
    flops_s *= gpu.tf32_flops_s / measured.tf32_flops_s * (_HALF_SPEEDUP if is_half(spec.dtype) else 1)
    bytes_s *= gpu.dram_bytes_s / measured.dram_bytes_s
    return spec.dense_flops / flops_s * 1e6, spec.traffic_bytes / bytes_s * 1e6


def tensor_core_floor_us(spec: ConvSpec, gpu: GpuInfo) -> float:
    """What no dense kernel on tensor cores undercuts in TF32, or twice as fast in half precision."""
    flops_s = gpu.tf32_flops_s * (2 if is_half(spec.dtype) else 1)
    return max(spec.dense_flops / flops_s, spec.traffic_bytes / gpu.dram_bytes_s) * 1e6


def layout_change_us(change: LayoutChange, gpu: GpuInfo) -> float:
    """What cuDNN takes for a tensor from NCHW to NHWC, or back."""
    share = _HALF_LAYOUT_CHANGE_SHARE if is_half(change.dtype) else _LAYOUT_CHANGE_SHARE
    return change.moved_bytes / (share * gpu.dram_bytes_s) * 1e6 + _LAYOUT_CHANGE_US


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
