"""Dense convolution for CPUs: vectors of filters (`cpu_filters`) or of output rows (`cpu_rows`), the weight as data.

The baseline every folded kernel must beat, and what a layer falls to that is not sparse enough. On the layers of ResNet
default decisions take 0.9 to 1.07 times as long as the faster of ONNX Runtime and oneDNN with AVX2, with AVX-512 in a
network 0.9 to 1.2 times, on maps of 56x56 up to 1.7 times (docs/measurements.md).
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_cuts import Threads
from tvm_sparse.scheduling.cpu_filters import HIDING_SUMS, FilterSpace, FormerFilterSpace, fitting_vectors
from tvm_sparse.scheduling.cpu_product import ProductSpace
from tvm_sparse.scheduling.cpu_rows import TILE, RowSpace, layout_named, layouts, layouts_of_tile, packs
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import MANY_REGISTERS, CpuInfo

NAME = "dense_cpu"
TARGET = "llvm"
# Layouts of rows offered to the search; fewer than for folded kernels, since all of them run near the machine's peak.
LAYOUTS = 2
# Vectors of filters in a register tile, the better first, for filters of one tap and of several; fewer where there are
# fewer filters. The sums of four and the pixels of a tile do not fit 16 registers.
VECTORS_OF_TAP, VECTORS, VECTORS_OF_FEW = (4, 2), (2, 4), (2,)
# Filters of a group that one register tile serves. Maps of fewer pixels are packed faster for all channels at once:
# with 32 registers, and with 16.
FILTERS_OF_GROUP, PIXELS_OF_GROUP, PIXELS_OF_GROUP_OF_FEW = 8, 128, 256
# How many times as long as their multiply-adds kernels of rows take that have no idle lanes, with 32 registers, where
# they pack the input of one tap (576x96x1x1 on 14x14: 198 us, by vectors of filters 148), and with 16
# (docs/measurements.md).
ROWS_COST, ROWS_COST_OF_PACKED_TAP, ROWS_COST_OF_FEW = 1.1, 1.27, 1.2
# Threads that share rows so well are as busy as those that share blocks of filters.
EVEN = 1.1


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some."""
    cpu = CpuInfo.of(target)
    if is_linear(spec):
        return [ProductSpace(NAME, spec, cpu.lanes)]
    return [*_ranked(spec, cpu, Threads.of(target, math.prod(spec.weight_shape)))]


@lru_cache(maxsize=1024)
def imbalance(spec: ConvSpec, cpu: CpuInfo, threads: int) -> float:
    """How many times as long as one thread's share of the work of a convolution `threads` take by default."""
    return _ranked(spec, cpu, Threads(threads, math.prod(spec.weight_shape), cpu.lanes))[0].imbalance


def _ranked(spec: ConvSpec, cpu: CpuInfo, threads: Threads) -> Sequence[FilterSpace | RowSpace]:
    by_rows = layouts(spec, cpu.lanes, threads=threads)[:LAYOUTS]
    rows = [RowSpace(NAME, spec, layout, packs(spec, layout)[0], cpu, False, threads) for layout in by_rows]
    has_many = cpu.registers >= MANY_REGISTERS
    if spec.groups > 1:
        # To pack all of the input first takes up to 1.7 times as long as to pack blocks of it.
        rows.sort(key=lambda space: space.pack == "root")
        by_tile = _of_groups(spec, cpu, threads)
        is_small = spec.out_h * spec.out_w < (PIXELS_OF_GROUP if has_many else PIXELS_OF_GROUP_OF_FEW)
        # All channels of a small map are one task.
        return [*rows, *by_tile] if is_small and threads.count == 1 else [*by_tile, *rows]
    # Pairs of vectors are the better tiles where a multiply-add broadcasts the weight.
    rows.sort(key=lambda space: space.layout.vectors % 2 if cpu.has_memory_broadcast else space.sums < HIDING_SUMS)
    offered = (VECTORS_OF_TAP if spec.r * spec.s == 1 else VECTORS) if has_many else VECTORS_OF_FEW
    vectors = fitting_vectors(spec, cpu, offered, threads.count)
    filters = [FilterSpace(NAME, spec, cpu, each, threads.count) for each in vectors]
    is_packed_tap = spec.r * spec.s == 1 and rows[0].pack != "direct"
    cost_of_many = ROWS_COST_OF_PACKED_TAP if is_packed_tap else ROWS_COST
    rows_cost = (cost_of_many if has_many else ROWS_COST_OF_FEW) * by_rows[0].waste(spec)
    rows_cost *= rows[0].imbalance if rows[0].imbalance > EVEN else 1.0
    ranked = sorted(filters, key=lambda space: space.cost)
    return [*ranked, *rows] if ranked[0].cost <= rows_cost else [*rows, *ranked]


def _of_groups(spec: ConvSpec, cpu: CpuInfo, threads: Threads) -> list[RowSpace]:
    """Those of a grouped convolution whose tiles of filters are whole groups, such as a depthwise one."""
    if spec.k // spec.groups > FILTERS_OF_GROUP:
        return []
    offered = [each for each in layouts_of_tile(spec, cpu.lanes) if not each.reads_input(spec)][:LAYOUTS]
    return [RowSpace(NAME, spec, layout, TILE, cpu, False, threads) for layout in offered]


def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of a layout of rows, offered or not, or of older records with vectors of filters, ``filters16``."""
    cpu, found = CpuInfo.of(target), re.fullmatch(r"filters([1-9]\d*)", variant)
    threads = Threads.of(target, math.prod(spec.weight_shape))
    if is_linear(spec):
        return None
    if rows := layout_named(spec, cpu.lanes, variant):
        return RowSpace(NAME, spec, *rows, cpu, False, threads)
    if not found or spec.groups > 1:
        return None
    vectors, rest = divmod(int(found[1]), cpu.lanes)
    is_tile = not rest and vectors <= max(VECTORS)
    return FormerFilterSpace(NAME, spec, cpu, vectors, threads.count) if is_tile else None
