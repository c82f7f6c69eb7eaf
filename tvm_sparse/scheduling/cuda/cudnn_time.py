"""What cuDNN takes on tensor cores, and to change layouts, as fitted to what was timed on `CARDS`."""

import math

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.staged_input import StagedInput, channel_group, has_whole_groups
from tvm_sparse.conv.storage import is_half
from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.scheduling.cuda.folded.cost_model_fit import FITS, fitted_on
from tvm_sparse.target.gpu import CARDS, GpuInfo

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
