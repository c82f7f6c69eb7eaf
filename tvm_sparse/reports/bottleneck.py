"""What limits a sparse convolution, from its shape and its zeros alone, and what to do about it.

Nothing is measured here. The constants are from `docs/results/table2-znver5.md`, one core of a Zen 5: folded kernels
that are limited by arithmetic reach 70 to 100 GFLOP/s there, dense ones about 250, and those limited by memory move 35
to 45 GB/s. On another processor the numbers differ, their ratios hardly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import folded_cpu
from tvm_sparse.scheduling.cpu.rows import layouts
from tvm_sparse.scheduling.cuda.cudnn_time import cudnn_us
from tvm_sparse.scheduling.cuda.folded.cost_model import floor_us as least_us
from tvm_sparse.scheduling.cuda.folded.cost_model_fit import fitted_on
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.gpu import GpuInfo, gpu_info

# Operations for each byte of input and output; with fewer, moving these takes longer than computing.
BALANCE_FLOP_PER_BYTE = 2.5
# Density below which sparse kernels are the faster ones on most layers, by target kind. On a CPU the median of Table 2,
# 0.26 to 0.76: against the best library at density 0.1, with time in proportion to the non-zeros. On a GPU the median
# of those cases in which cuDNN with TF32 overtakes at all, 0.10 to 0.35; it does in half of the twenty.
PAYS_BELOW = {"llvm": 0.4, "cuda": 0.2}
# Of a linear layer's non-zero in memory, with its index.
NON_ZERO_BYTES = 6
# A GPU's kernel of fewer microseconds mostly starts and ends.
FEW_US = 2.0
# Computed pixels for each useful one; with more, the map's rows fill their vectors badly.
WASTE = 1.25


@dataclass(frozen=True)
class Limit:
    """What a kernel of one layer spends its time on: `kind` in a word or two, `text` in a sentence.

    `time_us` is a predicted time of the best kernel, where there is a model that predicts one.
    """

    kind: str
    text: str
    time_us: float | None = None


def limit_of(
    spec: ConvSpec,
    pattern: SparsityPattern,
    target: Target,
    not_served: Mapping[str, str],
    estimate_us: float | None = None,
) -> Limit | None:
    """What limits a convolution; None where nothing is known of the target.

    Parameters
    ----------
    not_served
        Schedules that do not serve it, with reasons, as `spaces_of` gives them.
    estimate_us
        Estimated time of the best schedule's default decisions, where a space gives one.
    """
    if pattern.nnz == 0:
        return Limit("memory", "all its weights are zero, so it only writes its output")
    if target.kind.name == "cuda" and estimate_us is not None:
        return _limit_on_gpu(spec, pattern, gpu_info(target), estimate_us)
    if target.kind.name != "llvm":
        return None
    if is_linear(spec) and pattern.density <= PAYS_BELOW["llvm"]:
        return _limit_of_linear(spec, pattern)
    flop_per_byte = spec.sparse_flops(pattern.nnz) / spec.traffic_bytes
    waste = min(layout.waste(spec) for layout in layouts(spec, CpuInfo.of(target).lanes))
    if pattern.density > PAYS_BELOW["llvm"]:
        return Limit("density", f"{pattern.density:.0%} of its weights are left, where a dense kernel is mostly faster")
    if flop_per_byte < BALANCE_FLOP_PER_BYTE:
        return Limit("memory", f"only {flop_per_byte:.2g} operations for each byte of its input and output")
    if folded_cpu.NAME in not_served:
        return Limit("code size", f"{pattern.nnz} non-zeros are too many to fold, so weights are read as data")
    if waste > WASTE:
        used = f"a {spec.out_h}x{spec.out_w} map fills {1 / waste:.0%} of its vectors"
        return Limit("vectors", f"{used}, and each non-zero costs one multiply-add for each vector")
    return Limit("arithmetic", "one multiply-add for each non-zero and vector of pixels")


def _limit_of_linear(spec: ConvSpec, pattern: SparsityPattern) -> Limit:
    """Each non-zero is read once, with its index, and used once an image."""
    flop_per_byte = spec.sparse_flops(pattern.nnz) / (spec.traffic_bytes + NON_ZERO_BYTES * pattern.nnz)
    if flop_per_byte < BALANCE_FLOP_PER_BYTE:
        images = "1 image" if spec.n == 1 else f"{spec.n} images"
        megabytes = NON_ZERO_BYTES * pattern.nnz / 1e6
        return Limit("weights", f"{megabytes:.3g} MB of non-zeros are read for {images}")
    return Limit("arithmetic", "one multiply-add for each non-zero and vector of images")


def _limit_on_gpu(spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo, estimate_us: float) -> Limit:
    """The estimate beside the roof and beside cuDNN's, for the card that the target means."""
    floor_us, rival_us = least_us(spec, pattern, gpu), cudnn_us(spec, gpu)
    fitted = fitted_on(gpu)
    basis = f"an {fitted}" if fitted == gpu.name else f"{gpu.name}, from what was measured on an {fitted}"
    ratio = f"about {rival_us / estimate_us:.2g}x cuDNN with TF32, for {basis}"
    times = f"an exact kernel is predicted to take {estimate_us:.3g} us, {ratio}"
    if estimate_us < FEW_US:
        return Limit("launch", f"{times}; starting the kernel is most of that", estimate_us)
    if floor_us > estimate_us / 2:
        return Limit("memory", f"{times}; moving input and output alone takes {floor_us:.3g} us", estimate_us)
    return Limit("instructions", f"{times}; one instruction for each non-zero and 32 pixels", estimate_us)


def advise(spec: ConvSpec, pattern: SparsityPattern, limit: Limit | None, target: Target) -> list[str]:
    """What would make a layer faster, a sentence each; empty where nothing stands out."""
    kind = limit.kind if limit is not None else ""
    advice = []
    most = f"most layers gain from zeros below a density of about {PAYS_BELOW[target.kind.name]:g}"
    if pattern.structure == "dense":
        advice.append(f"it is not pruned; {most}")
    elif kind == "density":
        advice.append(f"prune it more, or not at all: {most}")
    if kind == "memory" and pattern.nnz:
        advice.append("more zeros will not make it faster; removing whole filters or channels would, or a smaller map")
    if kind == "code size":
        density = folded_cpu.most_non_zeros(target) / pattern.size
        advice.append(f"at a density of {density:.2g} its weights would fit into the code, which is faster at times")
    if pattern.dead_filters:
        advice.append(
            f"{pattern.dead_filters} of its filters are all zero, and stay, as what reads them or the width of vectors "
            "needs them"
        )
    if pattern.dead_channels and spec.groups == 1:
        advice.append(
            f"{pattern.dead_channels} of its input channels are never read, and stay, as other layers or the width of "
            "vectors need them"
        )
    return advice
