"""Which sparse kernel is worth taking for a layer that nobody has timed, from its shape and its zeros alone.

On CPUs: times in nanoseconds a weight and vector of pixels, from default decisions at density 0.1 on one core of a Zen
4 (docs/measurements.md, "What was measured on a CPU?"). Only their ratios count, which other processors hardly change.
Code is charged for being read once a call, as in a model where other layers' code displaces it. On GPUs: the spaces'
own estimates against that of cuDNN, of kernels for which no compiler runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import csr_cpu, data_cuda, folded_cpu, linear_cpu, spaces_of
from tvm_sparse.scheduling.cpu_rows import layouts
from tvm_sparse.scheduling.cuda import cost_model
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.gpu import gpu_info

# Nanoseconds: a multiply-add of a vector in a folded kernel, with weights as data, and of the best dense library.
FOLDED_NS, DATA_NS, DENSE_NS = 0.6, 0.95, 0.2
# To fetch the code of a non-zero, and its value and offset, once a call.
CODE_NS, PAIR_NS = 10.0, 1.0
# A linear layer's non-zero and image against a dense weight and image, where both come from memory.
LINEAR_RATIO = 4.0
# cuDNN in float32 against TF32, at the least: 3.1 in all of ResNet-50 at batch 1 on an H200.
FLOAT32_RATIO = 2.0
# A prediction must promise this much, as it may be wrong.
MARGIN = 1.25


@dataclass(frozen=True)
class Prediction:
    """A schedule, with its default decisions, and how many times as fast as the best dense kernel it should be."""

    schedule: str
    speedup: float


def predicted(spec: ConvSpec, pattern: SparsityPattern, target: Target, allow_tf32: bool = False) -> Prediction | None:
    """The most promising sparse kernel of a layer; None where dense should be as fast, or nothing is known.

    On a GPU the dense one computes in float32, or with `allow_tf32` in TF32.
    """
    if pattern.structure == "dense" or not pattern.nnz:
        return None
    is_gpu = target.kind.name == "cuda"
    names = [data_cuda.NAME] if is_gpu else [folded_cpu.NAME, csr_cpu.NAME, linear_cpu.NAME]
    found, _ = spaces_of(spec, pattern, target, names)
    if is_gpu:
        speedups = _on_gpu(spec, target, found, 1.0 if allow_tf32 else FLOAT32_RATIO)
    else:
        speedups = _on_cpu(spec, pattern, target)
    served = speedups.keys() & {each.schedule for each in found}
    best = max(served, key=lambda name: speedups[name], default=None)
    return Prediction(best, speedups[best]) if best is not None and speedups[best] >= MARGIN else None


def _on_cpu(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> dict[str, float]:
    """Expected speed-up by schedule."""
    if is_linear(spec):
        return {linear_cpu.NAME: 1 / (LINEAR_RATIO * pattern.density)}
    if spec.groups > 1:
        return {}
    lanes = CpuInfo.of(target).lanes
    vectors = spec.n * spec.out_h * spec.out_w / lanes * min(each.waste(spec) for each in layouts(spec, lanes))
    dense_ns = pattern.size * vectors * DENSE_NS
    folded_ns = pattern.nnz * (vectors * FOLDED_NS + CODE_NS)
    data_ns = pattern.nnz * (vectors * DATA_NS + PAIR_NS)
    return {folded_cpu.NAME: dense_ns / folded_ns, csr_cpu.NAME: dense_ns / data_ns}


def _on_gpu(spec: ConvSpec, target: Target, found: Sequence[Space], ratio: float) -> dict[str, float]:
    """The same of the spaces `found`, against a dense kernel that takes `ratio` times as long as cuDNN in TF32."""
    times_us = [each.estimate_us for each in found if each.estimate_us is not None]
    rival_us = ratio * cost_model.cudnn_us(spec, gpu_info(target))
    return {data_cuda.NAME: rival_us / min(times_us)} if times_us else {}
