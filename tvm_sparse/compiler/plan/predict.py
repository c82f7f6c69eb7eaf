"""Which kernel is worth taking for a layer that nobody has timed, from its shape and its zeros alone.

On CPUs: times in nanoseconds a weight and vector of pixels, and for weights as data cycles, by `scheduling.cpu.fit`.
Code is charged for being read once a call, as in a model where other layers' code displaces it. On GPUs: the spaces'
own estimates, code charged likewise, against that of cuDNN.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.staged_input import channel_group, has_whole_groups
from tvm_sparse.conv.storage import STORAGE, is_half
from tvm_sparse.schedules import (
    FAMILIES,
    byte_cpu,
    csr_cpu,
    data_cuda,
    dense_cpu,
    folded_cpu,
    folded_cuda,
    linear_cpu,
    linear_tensor_cuda,
    plane_cuda,
    quad_cuda,
    slice_cuda,
    vector_cpu,
    vector_cuda,
    winograd_cpu,
)
from tvm_sparse.schedules.lookup import family_of, spaces_of
from tvm_sparse.scheduling.cpu import line_space
from tvm_sparse.scheduling.cpu.byte_groups import of_fours, parts_of
from tvm_sparse.scheduling.cpu.byte_space import fours_in, is_depthwise
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit
from tvm_sparse.scheduling.cpu.fit import SPARSE
from tvm_sparse.scheduling.cpu.rows import LONG, layouts
from tvm_sparse.scheduling.cpu.winograd import WinogradSpace
from tvm_sparse.scheduling.cuda.cudnn_time import cudnn_alone_us, cudnn_half_us
from tvm_sparse.scheduling.cuda.folded.kernel_counts import INSTRUCTION_BYTES
from tvm_sparse.scheduling.cuda.library.map_size import is_grouped
from tvm_sparse.scheduling.cuda.slice.tiling import FILTERS
from tvm_sparse.scheduling.cuda.slice.time import Positions
from tvm_sparse.scheduling.family import TF32_VARIANT
from tvm_sparse.scheduling.space import Decisions, Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.gpu import gpu_info
from tvm_sparse.target.resolve import thread_count

# cuDNN in float32 on an H200: a step along C * R * S where few blocks have all of them, and the share of all
# multiprocessors' arithmetic that it reaches where there are many (28 TFLOP/s in all of ResNet-50 at batch 64).
K_STEP_US, FLOAT32_SHARE = 0.03, 0.45
# Folded kernels whose code exceeds the instruction caches took 1 to 2.5 times as long as estimated (3x3 convolutions of
# VGG16 at batch 64, an H100; the median), others as long as estimated.
BEYOND_CACHES = 1.5
# In half precision code of so few non-zeros takes 1 to 1.6 times as long as estimated, in eight of nine layers of 64
# images on an H200; of more two to four times.
HALF_CODE, MOST_HALF_NNZ = 1.6, 1000
# The same for channels in groups, at most, of which cuDNN computes 16 filters at once (ResNeXt-50 and RegNet at batch 1
# and 32, an H200), and how many times as long it takes in TF32 as without groups.
GROUPED_STEP_US, GROUPED_SHARE, GROUPED_FILTERS, GROUPED_TF32 = 0.17, 0.135, 16, 1.6
# A linear layer of so many images in half precision on its tensor cores: microseconds to start and to add parts up, and
# the share of DRAM's bandwidth (64 images of 4096x1000 on an H200: 7.7 us).
PRODUCT_IMAGES, PRODUCT_US, PRODUCT_SHARE = range(linear_tensor_cuda.LEAST_IMAGES_DENSE, 129), 5.5, 0.8
# Non-zeros that are folded at most where nothing is zero: more are compiled for longer than they gain.
MAX_DENSE_NNZ = 20_000
DENSE = "dense"
GPU_SCHEDULES, CPU_SCHEDULES = (
    [each.name for each in FAMILIES if each.is_predicted and each.target == kind] for kind in ("cuda", "llvm")
)
# A prediction must promise this much, as it may be wrong.
MARGIN = 1.25
# How many times as fast code for a weight must be where weights as data would do: compiling it takes seconds, and of
# networks that no log knows 1 to 3% of the time is lost (docs/lab/search.md, "How long does a kernel take to build?").
CODE_PRICE = 1.2
# So much on a CPU, whose predicted times are within 10% for most layers (docs/lab/cpu-sparse.md, "What bounds a layer
# within a network?").
CPU_MARGIN = 1.2
# So much for a layer without zeros: on an H200 all of 53 timed ones that were expected to gain this did, 2.9 times as
# fast as cuDNN in the geometric mean; of 115 that were expected to gain 1.25 times 12 lost.
DENSE_MARGIN = 2.0
# So much of channels in groups, for which both estimates were fitted to one run.
GROUPED_MARGIN = 1.5
# How much longer sparse layers of bytes take whose products are int16: 1.3 to 1.7 times (an Ice Lake).
WIDE_PRICE = 1.5
# How many times as fast depthwise layers of bytes are, at least (those of MobileNetV2, an Emerald Rapids).
BYTE_DEPTHWISE = 3.0


@dataclass(frozen=True)
class Prediction:
    """A space's name and decisions (None: defaults), and how many times as fast as the best dense it should be.

    `time_us` is what it should take; None where only the ratio is known.
    """

    schedule: str
    speedup: float
    decisions: Decisions | None = None
    time_us: float | None = None


def predicted(spec: ConvSpec, pattern: SparsityPattern, target: Target, allow_tf32: bool = False) -> Prediction | None:
    """The most promising kernel of ours for a layer; None where dense should be as fast, or nothing is known.

    On a GPU the dense one computes in float32, or with `allow_tf32` in TF32, which no dense kernel of a linear layer
    does; ours may round so too then. In float32 ours multiply on tensor cores, in parts, which is faster without any
    zeros too, as is Winograd's on a CPU. In half precision it computes on tensor cores; ours of convolutions then are
    on tensor cores too, or have weights as data, which suits few pixels, or so few non-zeros that their code is short.
    With TF32 cuDNN's dense kernels are as fast as ours, but for images, whose channels it fills up.
    """
    is_gpu, is_dense = target.kind.name == "cuda", pattern.structure == DENSE
    is_image = spec.c % channel_group(spec) > 0
    names = GPU_SCHEDULES if is_gpu else CPU_SCHEDULES
    if not pattern.nnz:
        return None
    if is_dense and not is_gpu:
        names = [winograd_cpu.NAME, byte_cpu.NAME]
    elif is_dense:
        if (allow_tf32 and not is_grouped(spec) and not is_image) or spec.dtype != FLOAT32 or is_linear(spec):
            return None
        names = [plane_cuda.NAME, quad_cuda.NAME, slice_cuda.NAME, vector_cuda.NAME]
        if is_grouped(spec) and pattern.nnz <= MAX_DENSE_NNZ:
            names.append(folded_cuda.NAME)
    elif is_gpu and is_half(spec.dtype) and not is_linear(spec):
        are_shared = Positions.of(spec, pattern).alike >= FILTERS
        names = [slice_cuda.NAME, plane_cuda.NAME, *([] if are_shared else [data_cuda.NAME, quad_cuda.NAME])]
        names += [folded_cuda.NAME] if pattern.nnz <= MOST_HALF_NNZ else []
    found, _ = spaces_of(spec, pattern, target, names)
    if is_gpu:
        if allow_tf32 and not is_linear(spec):
            named = [quad_cuda.named, *([slice_cuda.named] if is_image else [])]
            rounded = [each(spec, pattern, target, TF32_VARIANT) for each in named]
            found += [each for each in rounded if each is not None]
        margin = MARGIN
        if is_dense and not (allow_tf32 and is_image):
            margin = GROUPED_MARGIN if is_grouped(spec) else DENSE_MARGIN
        return _on_gpu(spec, pattern, target, found, allow_tf32 and not is_linear(spec), margin)
    speedups = _on_cpu(spec, pattern, target)
    served = speedups.keys() & {each.schedule for each in found}
    # Winograd's is what sparse ones are compared with, where it is the best dense one.
    for among in (served - {winograd_cpu.NAME}, served):
        best = max(among, key=lambda name: speedups[name], default=None)
        if best is not None and speedups[best] >= CPU_MARGIN:
            return Prediction(best, speedups[best])
    return None


def _on_cpu(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> dict[str, float]:
    """Expected speed-up by schedule over the best dense kernel, Winograd's over a direct one."""
    if is_linear(spec):
        return {linear_cpu.NAME: 1 / (SPARSE.linear_ratio * pattern.density)}
    if spec.groups > 1 and not spec.is_quantised:
        return {}
    if is_depthwise(spec):
        return {byte_cpu.NAME: BYTE_DEPTHWISE}
    times = cpu_times_us(spec, pattern.nnz, target, pattern.vector, fours_in(pattern, ByteUnit.of(target)))
    if spec.groups > 1:
        times = {name: times[name] for name in times.keys() & {DENSE, byte_cpu.NAME}}
    direct_us, dense_us = times.pop(DENSE), cpu_dense_us(spec, target)
    return {name: (direct_us if name == winograd_cpu.NAME else dense_us) / time_us for name, time_us in times.items()}


def cpu_dense_us(spec: ConvSpec, target: Target) -> float:
    """Estimated microseconds of cores of a Zen 3, of the best dense kernel."""
    times = cpu_times_us(spec, 1, target)
    return min(times[DENSE], times.get(winograd_cpu.NAME, math.inf))


def cpu_times_us(spec: ConvSpec, nnz: int, target: Target, vector: int = 1, fours: int = 0) -> dict[str, float]:
    """Estimated microseconds of cores of a Zen 3, of folded kernels, weights as data, by Winograd and `DENSE`.

    Sparse kernels wait for what a layer moves; dense ones multiply for so long that they do not. `vector` output
    channels share their non-zeros; where there are several, a kernel that makes use of it is among them. Of a
    quantised weight `fours` of input channels are multiplied.
    """
    size, threads = math.prod(spec.weight_shape), thread_count(target)
    cpu = CpuInfo.of(target)
    # Rows of a linear layer are as good as pixels, and its weight is read once a call.
    waste = 1.0 if is_linear(spec) else min(each.waste(spec) for each in layouts(spec, cpu.lanes))
    vectors = spec.n * spec.out_h * spec.out_w / cpu.lanes * waste
    read_us = 4 * size * SPARSE.between_ns_byte / 1e3 if is_linear(spec) else 0.0

    # A cache reads the lines of an output before they are written.
    far_bytes = max(0, spec.traffic_bytes + spec.output_bytes - SPARSE.near_bytes)
    moved_us = far_bytes * SPARSE.moved_ns_byte / 1e3

    def as_data_us(cycles: float, pairs: int = nnz) -> float:
        return (cycles * SPARSE.cycle_ns + pairs * SPARSE.pair_ns) / 1e3 + moved_us

    # Where little is multiplied kernels by rows keep their sums and copy them, and dense ones wait for memory too; of
    # shorter vectors that was not measured.
    copied_us = waited_us = 0.0
    if cpu.lanes >= LONG and not is_linear(spec) and dense_cpu.mostly_stores(spec, cpu):
        copied_us = spec.output_bytes * SPARSE.copied_ns_byte / 1e3
        waited_us = moved_us + copied_us
    # Of several threads each reads the code, for few pixels at a time.
    again = 1.0 if threads == 1 else min(SPARSE.most_again, 1 + nnz / SPARSE.cached_code)
    uneven = 1.0 if is_linear(spec) else dense_cpu.imbalance(spec, cpu, threads)
    times_us = {
        DENSE: size * vectors * SPARSE.dense_ns / 1e3 * uneven + read_us + waited_us,
        folded_cpu.NAME: nnz * (vectors * SPARSE.folded_ns + SPARSE.code_ns * again) / 1e3 + moved_us + copied_us,
        csr_cpu.NAME: as_data_us(line_space.least_cycles(spec, nnz, cpu)),
    }
    if WinogradSpace.computes(spec, cpu):
        direct_us = size * spec.n * spec.out_h * spec.out_w / cpu.lanes * SPARSE.dense_ns / 1e3
        times_us[winograd_cpu.NAME] = direct_us * winograd_cpu.relative_time(spec, cpu, threads) + waited_us
    if spec.is_quantised:
        # Others' sums are read, scaled, rounded and written again.
        rounded_us = 2 * spec.output_bytes * SPARSE.between_ns_byte / 1e3
        times_us = {name: time_us + rounded_us for name, time_us in times_us.items()}
    if spec.is_quantised and fours:
        cycles = line_space.least_cycles(of_fours(spec), fours // parts_of(spec), cpu)
        unit = ByteUnit.of(target)
        times_us[byte_cpu.NAME] = as_data_us(cycles * (WIDE_PRICE if unit and unit.is_wide else 1), fours)
    if shared := vector_cpu.shared_filters(spec, vector):
        times_us[vector_cpu.NAME] = as_data_us(line_space.least_cycles(spec, nnz, cpu, shared))
    return times_us


def _on_gpu(
    spec: ConvSpec, pattern: SparsityPattern, target: Target, found: Sequence[Space], allow_tf32: bool, margin: float
) -> Prediction | None:
    """The fastest of the spaces `found` with its default decisions, where it is expected to beat cuDNN by `margin`."""
    dense_us = _alone_us(spec, target, allow_tf32)
    # A block executes the code of one group.
    exceeds = INSTRUCTION_BYTES * pattern.nnz / spec.groups > gpu_info(target).instruction_cache_bytes[1]
    doubt = HALF_CODE if is_half(spec.dtype) and not is_linear(spec) else BEYOND_CACHES if exceeds else 1.0
    doubts = {folded_cuda.NAME: doubt}
    known = {
        (space, rank): time_us * doubts.get(space.schedule, 1.0)
        for space in found
        for rank, time_us in enumerate(space.starts_us)
        if time_us is not None
    }
    if not known or dense_us < margin * min(known.values()):
        return None
    space, rank = best = min(known, key=lambda each: known[each] * (CODE_PRICE if _is_folded(each[0]) else 1.0))
    return Prediction(space.name, dense_us / known[best], space.starts()[rank], known[best])


def _is_folded(space: Space) -> bool:
    return family_of(space.schedule).is_folded


def gpu_dense_us(spec: ConvSpec, target: Target, allow_tf32: bool = False) -> float:
    """Estimated microseconds of cuDNN in a dense model; in half precision tensors there stay in NHWC.

    It computes on tensor cores with `allow_tf32`, and convolutions in half precision anyway.
    """
    if is_half(spec.dtype) and has_whole_groups(spec):
        return cudnn_half_us(spec, gpu_info(target))
    return _alone_us(spec, target, allow_tf32)


def _alone_us(spec: ConvSpec, target: Target, allow_tf32: bool) -> float:
    """The same with neighbours in NCHW, weights read from memory."""
    gpu, size = gpu_info(target), math.prod(spec.weight_shape)
    if is_linear(spec) and is_half(spec.dtype) and spec.n in PRODUCT_IMAGES:
        read_bytes = STORAGE[spec.dtype].size_bytes * size + spec.traffic_bytes
        return PRODUCT_US + read_bytes / (PRODUCT_SHARE * gpu.dram_bytes_s) * 1e6
    dense_us = cudnn_alone_us(spec, gpu)
    step_us, share = K_STEP_US, FLOAT32_SHARE
    if is_grouped(spec):
        dense_us *= GROUPED_TF32
        step_us, share = GROUPED_STEP_US, GROUPED_SHARE * min(1.0, spec.k // spec.groups / GROUPED_FILTERS)
    if not allow_tf32 and (is_linear(spec) or not is_half(spec.dtype)):
        dense_us = max(dense_us, spec.dense_flops / (share * gpu.flops_s) * 1e6, step_us * (size // spec.k))
    return dense_us + STORAGE[spec.dtype].size_bytes * size / gpu.dram_bytes_s * 1e6
