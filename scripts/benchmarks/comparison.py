"""Comparisons within a case of `results`: best variants, verdicts, roofs and the density where winning ends."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.results import OURS, Case, Contender, Device, Kind
from tvm_sparse.conv.storage import STORAGE, is_half
from tvm_sparse.measure.quartiles import Quartiles
from tvm_sparse.measure.timing import speedup, verdict
from tvm_sparse.target.gpu import GpuInfo, capability_of, card

# What a user of cuDNN gets: exactly float32, or, torch's default, TF32 allowed where that is faster.
CUDNN_FP32, CUDNN_TF32, CUDNN_FP16 = ("cudnn-fp32",), ("cudnn-fp32", "cudnn-tf32"), ("cudnn-fp16",)
# Every baseline that computes the same convolution in float32.
EXACT = (*CUDNN_FP32, "im2col-cublas-fp32", "im2col-cusparse", "escort", "escort-prepadded")
# Multiply-adds a clock of one multiprocessor, Hopper.
LANES = 128


@dataclass(frozen=True)
class Comparison:
    """How many times faster than a baseline, and whether rounds agree on it."""

    baseline: Contender
    ratio: Quartiles
    verdict: str


@dataclass(frozen=True)
class Roof:
    """The least time that arithmetic and memory allow, microseconds: operations of the non-zeros, compulsory bytes."""

    compute_us: float
    memory_us: float

    @property
    def time_us(self) -> float:
        """The larger of both."""
        return max(self.compute_us, self.memory_us)


def best(case: Case, families: Sequence[str], density: float | None = None, kind: Kind = "cold") -> Contender | None:
    """The fastest contender of these families; one that depends on zeros only at `density`."""
    found = [
        contender
        for contender in case.contenders
        if contender.family in families
        and contender.final
        and contender.density in (None, density)
        and contender.times_us(kind)
    ]
    return min(found, key=lambda contender: median_us(contender, kind), default=None)


def median_us(contender: Contender, kind: Kind = "cold") -> float:
    """Median time."""
    return Quartiles.of(contender.times_us(kind)).median


def against(case: Case, density: float, families: Sequence[str], kind: Kind = "cold") -> Comparison | None:
    """Our kernel at `density` against the best of some families, in the same rounds."""
    own, baseline = best(case, [OURS], density, kind), best(case, families, density, kind)
    if own is None or baseline is None:
        return None
    ratio = speedup(own.times_us(kind), baseline.times_us(kind))
    return Comparison(baseline, ratio, verdict(ratio))


def card_of(device: Device) -> GpuInfo | None:
    """What is known of a GPU; None where no card has its name."""
    found = card(capability_of(device.arch), device.name)
    return found if device.name.startswith(found.name) else None


def peak_flops(device: Device) -> float | None:
    """float32 operations a second: from multiprocessors and clock where known, else by name."""
    if device.multiprocessors and device.clock_mhz:
        return device.multiprocessors * LANES * 2 * device.clock_mhz * 1e6
    gpu = card_of(device)
    return None if gpu is None else gpu.flops_s


def non_zeros(case: Case, density: float) -> int:
    """Non-zero weights at a density, as `operators.weight` makes them."""
    return round(density * math.prod(case.spec.weight_shape))


def roof(case: Case, density: float, device: Device) -> Roof | None:
    """For the non-zeros; input, output and the non-zeros' values move once. None for an unknown GPU.

    In half precision bytes alone: tensor cores do the non-zeros' operations of any of these operators sooner.
    """
    flops, gpu = peak_flops(device), card_of(device)
    if flops is None or gpu is None:
        return None
    nnz = non_zeros(case, density)
    elements = math.prod(case.spec.input_shape) + math.prod(case.spec.output_shape) + nnz
    memory_us = STORAGE[case.dtype].size_bytes * elements / gpu.dram_bytes_s * 1e6
    return Roof(0.0 if is_half(case.dtype) else case.spec.sparse_flops(nnz) / flops * 1e6, memory_us)


def crossing(ratios: Iterable[tuple[float, float]]) -> tuple[str, float | None]:
    """Up to which density we win, from (density, times faster): a word and the density.

    ``always``: at all measured; ``never``: at none, not even the lowest; ``below``: up to the density given, where the
    line between the two measured ones around it, both axes logarithmic, crosses 1.
    """
    points = sorted(ratios)
    if not points:
        return "unknown", None
    if points[0][1] <= 1:
        return "never", None
    for (low, faster), (high, slower) in pairwise(points):
        if slower <= 1:
            share = math.log(faster) / (math.log(faster) - math.log(slower))
            return "below", math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return "always", points[-1][0]


def pick(cases: Iterable[Case], score: Callable[[Case], float]) -> dict[tuple[int, int], Case]:
    """Of several cases of one operator and batch the one with the highest score, the later of equals."""
    found = {(case.operator, case.batch): case for case in sorted(cases, key=score)}
    return dict(sorted(found.items()))
