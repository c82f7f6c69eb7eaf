"""Weights pruned in vectors of filters, for CPUs: tiles of filters share each load of the input; weights are data.

A vector pattern has V filters that share each position; a tile takes as many of them as registers allow. Then a
position loads its pixels once for all filters of the tile, and its weights once for all vectors of pixels: of 4 filters
by 3 vectors 7 loads for 12 multiply-adds, where unstructured weights need 12 and more. Vectors run along pixels and not
along filters, as outputs are then stored as they lie in memory, and any V from 2 on is served (docs/lab/cpu-sparse.md).
"""

import math

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.cuts import Threads
from tvm_sparse.scheduling.cpu.data_rows import DataRowSpace
from tvm_sparse.scheduling.cpu.data_tiles import best_tiles, of_variant, variant_of
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.cpu_info import CpuInfo

NAME = "vector_cpu"
# Layouts of rows with a tile that are offered to the search.
OFFERED = 4
# Filters of a tile.
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
    cpu = CpuInfo.of(target)
    threads = Threads.of(target, pattern.nnz)
    offered = best_tiles(spec, pattern.nnz, cpu, shared, threads.count, OFFERED)
    return [DataRowSpace(NAME, variant_of(*each), threads, *each) for each in offered]


def shared_filters(spec: ConvSpec, vector: int) -> list[int]:
    """How many filters a tile may have where `vector` of them share their zeros; it spans no two of the groups."""
    return [each for each in FILTERS if math.gcd(vector, spec.k // spec.groups) % each == 0]


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of a layout and a tile of several filters, whether or not it is among those offered."""
    cpu = CpuInfo.of(target)
    threads = Threads.of(target, pattern.nnz)
    found = of_variant(spec, pattern.nnz, variant, cpu, threads.count)
    if not found or found[1].filters not in shared_filters(spec, pattern.vector):
        return None
    return DataRowSpace(NAME, variant, threads, *found)


FAMILY = KernelFamily(NAME, "llvm", spaces, named, is_predicted=True)
