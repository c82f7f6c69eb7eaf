"""Escort's direct sparse convolution for CPUs: weights as data, any number of non-zeros in little code.

Each filter is a list of non-zeros, each broadcast and multiplied by the vectors at its place. Inputs are packed so that
each of these is a whole vector (`cpu.lines`). Logs may name kernels that read vectors wherever they begin
(`cpu.data_rows`); no search begins with those.
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.cuts import Threads
from tvm_sparse.scheduling.cpu.data_rows import DataRowSpace, DataTile, Pack, PackedRows
from tvm_sparse.scheduling.cpu.data_tiles import of_variant
from tvm_sparse.scheduling.cpu.line_space import LineSpace, ranked, tiles, variant_of
from tvm_sparse.scheduling.cpu.rows import layouts
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Space, divisors
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "csr_cpu"
# Tiles offered to the search.
OFFERED = 3
# Vectors of a filter's sums by themselves at most, of kernels that logs name.
VECTORS = 8


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some.

    Raises
    ------
    NotApplicable
        The packed input or the output has 2**31 elements or more.
    """
    cpu, threads = CpuInfo.of(target), thread_count(target)
    found = dict.fromkeys(each.lines for each in ranked(spec, pattern.nnz, cpu, threads))
    return [LineSpace(NAME, each, pattern.nnz, threads) for each in list(found)[:OFFERED]]


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of a layout and a tile of one filter, whether or not it is among those offered."""
    cpu = CpuInfo.of(target)
    lines = next((each for each in tiles(spec, cpu) if variant == variant_of(each)), None)
    if lines is not None:
        return LineSpace(NAME, lines, pattern.nnz, thread_count(target))
    threads = Threads.of(target, pattern.nnz)
    found = _filter_alone(spec, cpu, variant) or of_variant(spec, pattern.nnz, variant, cpu, threads.count)
    return DataRowSpace(NAME, variant, threads, *found) if found and found[1].filters == 1 else None


def _filter_alone(spec: ConvSpec, cpu: CpuInfo, variant: str) -> tuple[PackedRows, DataTile] | None:
    for layout in layouts(spec, cpu.lanes):
        packed = PackedRows(spec, layout, Pack.DIRECT if layout.reads_input(spec) else Pack.ROOT)
        if str(packed) == variant:
            return packed, DataTile(1, divisors(layout.vectors, VECTORS)[-1], spec.weight_shape[1])
    return None


FAMILY = KernelFamily(NAME, "llvm", spaces, named, is_predicted=True)
