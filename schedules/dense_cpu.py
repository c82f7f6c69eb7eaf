"""Dense convolution for CPUs: the structure of `cpu_rows` with the weight as an argument.

The baseline every folded kernel must beat, and what a layer falls to that is not sparse enough. On operators 6
to 10 of Table 2 it runs at 0.6 to 1.0 times the speed of oneDNN (docs/results/table2-znver5.md).
"""

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_product import ProductSpace
from tvm_sparse.scheduling.cpu_rows import RowSpace, layouts, packs
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo

NAME = "dense_cpu"
TARGET = "llvm"
# Layouts offered to the search; fewer than for folded kernels, since all of them run near the machine's peak.
LAYOUTS = 2


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some."""
    if is_linear(spec):
        return [ProductSpace(NAME, spec, CpuInfo.of(target).lanes)]
    return [
        RowSpace(NAME, spec, layout, packs(spec, layout)[0], fold=False)
        for layout in layouts(spec, CpuInfo.of(target).lanes)[:LAYOUTS]
    ]
