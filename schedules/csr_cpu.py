"""Escort's direct sparse convolution for CPUs: weights as data, any number of non-zeros in little code.

Each filter is a tile of its own: every non-zero is broadcast and multiplied by the vectors at its offset. The structure
is that of `cpu_data_rows`. Where there are more input channels than the level-1 cache holds what a tile reads of, a
variant takes them in steps: 512x512x3x3 on 28x28 at density 0.1 then takes two thirds of the time.
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_data_rows import DataRowSpace, DataTile, Pack, PackedRows
from tvm_sparse.scheduling.cpu_data_tiles import best_tiles
from tvm_sparse.scheduling.cpu_rows import layouts
from tvm_sparse.scheduling.space import Space, divisors
from tvm_sparse.target.cpu_info import CpuInfo

NAME = "csr_cpu"
TARGET = "llvm"
# Layouts offered to the search, and such with steps over input channels.
LAYOUTS, STEPPING = 2, 2
# Vectors whose sums a filter keeps in registers at most; enough to hide the latency of the multiply-add.
TILE = 8


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some.

    Raises
    ------
    NotApplicable
        The packed input or the output has 2**31 elements or more.
    """
    cpu = CpuInfo.of(target)
    found: list[Space] = []
    for layout in layouts(spec, cpu.lanes)[:LAYOUTS]:
        packed = PackedRows(spec, layout, Pack.DIRECT if layout.reads_input(spec) else Pack.ROOT)
        tile = DataTile(1, divisors(layout.vectors, TILE)[-1], spec.c // spec.groups)
        found.append(DataRowSpace(NAME, str(packed), pattern.nnz, packed, tile))
    stepping = [each for each in best_tiles(spec, pattern.nnz, cpu, [1]) if each[1].channels < spec.c // spec.groups]
    return found + [
        DataRowSpace(NAME, f"{packed}-{tile}", pattern.nnz, packed, tile) for packed, tile in stepping[:STEPPING]
    ]
