"""Dense convolution for CPUs: vectors of filters (`cpu_filters`) or of output rows (`cpu_rows`), the weight as data.

The baseline every folded kernel must beat, and what a layer falls to that is not sparse enough. On the layers of ResNet
default decisions take 0.9 to 1.07 times as long as the faster of ONNX Runtime and oneDNN with AVX2, with AVX-512 1 to
1.4 times (docs/measurements.md).
"""

import re

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_filters import HIDING_SUMS, FilterSpace, FormerFilterSpace
from tvm_sparse.scheduling.cpu_product import ProductSpace
from tvm_sparse.scheduling.cpu_rows import RowSpace, layouts, packs
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "dense_cpu"
TARGET = "llvm"
# Layouts of rows offered to the search; fewer than for folded kernels, since all of them run near the machine's peak.
LAYOUTS = 2
# Vectors of filters in a register tile, the better first, for filters of one tap and of several; fewer where there are
# fewer filters. The sums of four and the pixels of a tile do not fit 16 registers.
VECTORS_OF_TAP, VECTORS, VECTORS_OF_FEW, MANY_REGISTERS = (4, 2), (2, 4), (2,), 32
# How many times as long as their multiply-adds kernels of rows take that have no idle lanes, with 32 registers and with
# 16 (docs/measurements.md).
ROWS_COST, ROWS_COST_OF_FEW = 1.1, 1.2


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some."""
    cpu = CpuInfo.of(target)
    if is_linear(spec):
        return [ProductSpace(NAME, spec, cpu.lanes)]
    by_rows = layouts(spec, cpu.lanes)[:LAYOUTS]
    rows = [RowSpace(NAME, spec, layout, packs(spec, layout)[0], cpu, fold=False) for layout in by_rows]
    if spec.groups > 1:
        return [*rows]
    has_many = cpu.registers >= MANY_REGISTERS
    # Pairs of vectors are the better tiles where a multiply-add broadcasts the weight.
    rows.sort(key=lambda space: space.layout.vectors % 2 if cpu.has_memory_broadcast else space.sums < HIDING_SUMS)
    offered = (VECTORS_OF_TAP if spec.r * spec.s == 1 else VECTORS) if has_many else VECTORS_OF_FEW
    vectors = dict.fromkeys(min(each, -(-spec.k // cpu.lanes)) for each in offered)
    filters = [FilterSpace(NAME, spec, cpu, each, thread_count(target)) for each in vectors]
    rows_cost = (ROWS_COST if has_many else ROWS_COST_OF_FEW) * by_rows[0].waste(spec)
    ranked = sorted(filters, key=lambda space: space.cost)
    return [*ranked, *rows] if ranked[0].cost <= rows_cost else [*rows, *ranked]


def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of older records with vectors of filters, ``filters16``, which no search is offered."""
    cpu, found = CpuInfo.of(target), re.fullmatch(r"filters([1-9]\d*)", variant)
    if not found or spec.groups > 1 or is_linear(spec):
        return None
    vectors, rest = divmod(int(found[1]), cpu.lanes)
    is_tile = not rest and vectors <= max(VECTORS)
    return FormerFilterSpace(NAME, spec, cpu, vectors, thread_count(target)) if is_tile else None
