"""Escort's direct sparse convolution for CPUs: weights as data, any number of non-zeros in little code.

Each filter is a tile of its own: every non-zero is broadcast and multiplied by the vectors at its offset. The structure
is that of `cpu_data_rows`.
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_data_rows import DataRowSpace, DataTile, require_short
from tvm_sparse.scheduling.cpu_rows import layouts
from tvm_sparse.scheduling.space import Space, divisors
from tvm_sparse.target.cpu_info import CpuInfo

NAME = "csr_cpu"
TARGET = "llvm"
# Layouts offered to the search.
LAYOUTS = 2
# Vectors whose sums a filter keeps in registers at most; enough to hide the latency of the multiply-add.
TILE = 8


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some.

    Raises
    ------
    NotApplicable
        The packed input or the output has 2**31 elements or more.
    """
    found: list[Space] = []
    for layout in layouts(spec, CpuInfo.of(target).lanes)[:LAYOUTS]:
        require_short(spec, layout)
        tile = DataTile(1, divisors(layout.vectors, TILE)[-1], spec.c // spec.groups)
        variant = f"rows{layout.rows}x{layout.row_stride}"
        found.append(DataRowSpace(NAME, variant, spec, pattern.nnz, layout, tile))
    return found
