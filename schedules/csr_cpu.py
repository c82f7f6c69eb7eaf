"""Escort's direct sparse convolution for CPUs: weights as data, any number of non-zeros in little code.

Each filter is a list of non-zeros, each broadcast and multiplied by the vectors at its place. Inputs are packed so that
each of these is a whole vector (`cpu.lines`).
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.line_space import LineSpace, ranked, tiles, variant_of
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "csr_cpu"
# Tiles offered to the search.
OFFERED = 3


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
    """The space of a tile, whether or not it is among those offered."""
    lines = next((each for each in tiles(spec, CpuInfo.of(target)) if variant == variant_of(each)), None)
    return LineSpace(NAME, lines, pattern.nnz, thread_count(target)) if lines is not None else None


FAMILY = KernelFamily(NAME, "llvm", spaces, named, is_predicted=True)
