"""Dense convolution for CPUs: vectors of filters (`cpu_filters`) or of output rows (`cpu_rows`), the weight as data.

The baseline every folded kernel must beat, and what a layer falls to that is not sparse enough. Default decisions take
0.9 to 1.3 times as long as ONNX Runtime on the layers of ResNet (docs/measurements.md).
"""

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_filters import FilterSpace
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
# How many times as long as their multiply-adds kernels of rows take that have no idle lanes (docs/measurements.md).
ROWS_COST = 1.1


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some."""
    cpu = CpuInfo.of(target)
    if is_linear(spec):
        return [ProductSpace(NAME, spec, cpu.lanes)]
    by_rows = layouts(spec, cpu.lanes)[:LAYOUTS]
    rows: list[Space] = [RowSpace(NAME, spec, layout, packs(spec, layout)[0], fold=False) for layout in by_rows]
    if spec.groups > 1:
        return rows
    has_many = cpu.registers >= MANY_REGISTERS
    offered = (VECTORS_OF_TAP if spec.r * spec.s == 1 else VECTORS) if has_many else VECTORS_OF_FEW
    vectors = dict.fromkeys(min(each, -(-spec.k // cpu.lanes)) for each in offered)
    filters = [FilterSpace(NAME, spec, cpu, each, thread_count(target)) for each in vectors]
    # With 16 registers rows took 0.9 to 2.6 times as long as vectors of filters (a Zen 3, AVX2; docs/measurements.md).
    is_first = not has_many or min(each.cost for each in filters) <= ROWS_COST * by_rows[0].waste(spec)
    ranked = sorted(filters, key=lambda space: space.cost)
    return [*ranked, *rows] if is_first else [*rows, *ranked]
