"""Cycles that kernels take, by how they are cut: of a task, and of the thread that ends last.

Nothing here is exact. Only which of several cuts takes least is asked for, and how a kernel's time compares with that
of its multiply-adds.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.winograd_filter import READ
from tvm_sparse.scheduling.cpu.fit import CpuFit
from tvm_sparse.target.cpu_info import CpuInfo

# A tile of one tap reads its input in order, and so waits for a level-3 cache as if there were so many taps.
LEAST_TAPS = 4


Way = TypeVar("Way")


@dataclass(frozen=True)
class Ranking(Generic[Way]):
    """Ways to compute a layer, and the cycles that each takes: `fixed`, and `each` a non-zero."""

    ways: list[Way]
    fixed: np.ndarray
    each: np.ndarray

    @classmethod
    def of(cls, ways: list[Way], cycles: Callable[[int, Way], float]) -> "Ranking[Way]":
        """By `cycles`, a straight line in the number of non-zeros."""
        fixed, of_one = (np.array([cycles(nnz, way) for way in ways]) for nnz in (0, 1))
        return cls(ways, fixed, of_one - fixed)

    def best(self, nnz: int) -> Iterator[Way]:
        """All ways, those first that take least with so many non-zeros."""
        return (self.ways[index] for index in np.argsort(self.fixed + nnz * self.each, kind="stable"))

    def least_cycles(self, nnz: int) -> float:
        """What the first of them takes."""
        return float(np.min(self.fixed + nnz * self.each))


def rounds(tasks: int, threads: int) -> int:
    """Tasks of the busiest of threads that are equally fast."""
    return -(-tasks // threads)


def rounds_of_any(tasks: int, threads: int) -> float:
    """How many tasks several threads take as long as: halfway between equally fast ones and others.

    Of others the last task begins as the rest end. 16 of a virtual machine take 300 us for 512x512x1x1 on 14x14 in 16
    tasks, and 140 in 64. Folded kernels, which read their code for each task, are not cut so: ResNet-50 with 90% zeros
    took 1.1 times as long.
    """
    return tasks if threads == 1 else (rounds(tasks, threads) + tasks / threads + 1) / 2


def rows_packed_again(spec: ConvSpec) -> float:
    """Output rows' worth of input that two neighbouring blocks of rows both pack."""
    return max(0, (spec.r - 1) * spec.dilation[0] + 1 - spec.stride[0]) / spec.stride[0]


def even_cycles(spec: ConvSpec, cpu: CpuInfo, tile: int) -> float:
    """Of a direct convolution's multiply-adds in tiles of `tile` pixels, on one core, with no lane idle."""
    products, fit = math.prod(spec.weight_shape) * spec.n * spec.out_h * spec.out_w, CpuFit.of(cpu)
    return products / cpu.lanes * (fit.product_cycles + fit.loading_cycles / tile)


def products_cycles(cpu: CpuInfo, vectors: int, columns: int, tile: int) -> float:
    """Of one step of register tiles of `tile` pixels by so many `vectors`, for all `columns` of pixels."""
    fit = CpuFit.of(cpu)
    return vectors * (columns * (fit.product_cycles + fit.loading_cycles / tile) + fit.weight_cycles)


def direct_cycles(
    spec: ConvSpec, cpu: CpuInfo, vectors: int, columns: int, tile: int, group: int, rows: int, packs: bool
) -> float:
    """Of a task with `group` blocks of so many vectors of filters, and `rows` output rows of so many `columns`."""
    fit, taps, channels = CpuFit.of(cpu), spec.r * spec.s, spec.weight_shape[1]
    skipped, width = (1, spec.out_w) if taps == 1 else (spec.stride[0], spec.w)
    # All of its blocks read the same channels, or each those of its group.
    read = (rows + rows_packed_again(spec)) * skipped * width * channels * (group if spec.groups > 1 else 1)
    products = group * taps * channels * products_cycles(cpu, vectors, rows * columns, tile)
    copied = fit.copy_cycles * read / cpu.lanes if packs else 0.0
    return products * _spilled(fit, 4 * read / max(taps, LEAST_TAPS)) + copied


def winograd_cycles(spec: ConvSpec, cpu: CpuInfo, vectors: int, tiles: int, tile: int, group: int) -> float:
    """Of a task with `group` blocks of so many vectors of filters, and so many `tiles` of Winograd's."""
    fit, numbers = CpuFit.of(cpu), READ * READ
    products = group * numbers * spec.c * products_cycles(cpu, vectors, tiles, tile)
    inputs = fit.input_transform_cycles * tiles * spec.c / cpu.lanes
    outputs = fit.output_transform_cycles * tiles * vectors * group
    return products * _spilled(fit, numbers * 4 * spec.c * tiles) + inputs + outputs


def depthwise_cycles(spec: ConvSpec, cpu: CpuInfo, columns: int, rows: int) -> float:
    """Of a task with a vector of channels of `rows` output rows of so many `columns`, in blocks throughout."""
    fit = CpuFit.of(cpu)
    read = (rows + rows_packed_again(spec)) * spec.stride[0] * spec.w
    computed = rows * columns * (spec.r * spec.s * fit.product_cycles + fit.store_cycles)
    return computed + fit.store_cycles * read


def transposed_cycles(spec: ConvSpec, cpu: CpuInfo, rows: int, pixel_cycles: float) -> float:
    """The same where the output is transposed, and each pixel of the input takes so many cycles to come by."""
    fit = CpuFit.of(cpu)
    read = (rows + rows_packed_again(spec)) * spec.stride[0] * spec.w
    return rows * spec.out_w * (spec.r * spec.s * fit.product_cycles + fit.transpose_cycles) + pixel_cycles * read


def _spilled(fit: CpuFit, read_bytes: float) -> float:
    """How many times as long products take that read so many bytes of input."""
    return min(1 + read_bytes / fit.spilled_bytes, fit.most_spilled)
