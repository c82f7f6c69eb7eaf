"""Weights pruned in vectors of filters, for CPUs: filters that share their zeros share each load of the input.

The kernels are those of `csr_cpu`, whose lists are of as many filters of a vector as registers allow. A position loads
its pixels once for all of them, and its weights once for all vectors of pixels: of 4 filters by 3 vectors 7 loads for
12 multiply-adds, where unstructured weights need 12 and more. Vectors run along pixels and not along filters, as
outputs are then stored as they lie in memory, and any vector of filters from 2 on is served (docs/lab/cpu-sparse.md).
"""

import math

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.line_space import LineSpace, ranked, tiles, variant_of
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "vector_cpu"
# Tiles offered to the search.
OFFERED = 4
# Filters of a list.
FILTERS = (2, 4, 8)


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    NotApplicable where filters do not share their zeros in vectors, or the packed input or the output has 2**31
    elements or more.
    """
    shared = shared_filters(spec, pattern.vector)
    if not shared:
        hint = "filters that share their zeros in vectors of 2 or more"
        raise NotApplicable(f"the zeros are {pattern.structure}; it is for {hint}")
    threads = thread_count(target)
    ways = dict.fromkeys(each[:2] for each in ranked(spec, pattern.nnz, CpuInfo.of(target), threads, shared))
    return [LineSpace(NAME, lines, pattern.nnz, threads, count) for lines, count in list(ways)[:OFFERED]]


def shared_filters(spec: ConvSpec, vector: int) -> tuple[int, ...]:
    """How many filters a list may have where `vector` of them share their zeros; it spans no two of the groups."""
    return tuple(each for each in FILTERS if math.gcd(vector, spec.k // spec.groups) % each == 0)


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of a tile and of lists of several filters, whether or not it is among those offered."""
    for shared in shared_filters(spec, pattern.vector):
        for lines in tiles(spec, CpuInfo.of(target), shared):
            if variant == variant_of(lines, shared):
                return LineSpace(NAME, lines, pattern.nnz, thread_count(target), shared)
    return None


FAMILY = KernelFamily(NAME, "llvm", spaces, named, is_predicted=True)
