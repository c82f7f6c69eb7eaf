"""Weights pruned in vectors of filters, for CPUs: tiles of filters share each load of the input; weights are data.

A vector pattern has V filters that share each position; a tile takes as many of them as registers allow. Then a
position loads its pixels once for all filters of the tile, and its weights once for all vectors of pixels: of 4 filters
by 3 vectors 7 loads for 12 multiply-adds, where unstructured weights need 12 and more. Vectors run along pixels and not
along filters, as outputs are then stored as they lie in memory, and any V from 2 on is served (docs/measurements.md).
"""

import math

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_data_rows import DataRowSpace
from tvm_sparse.scheduling.cpu_data_tiles import best_tiles
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.cpu_info import CpuInfo

NAME = "vector_cpu"
TARGET = "llvm"
# Layouts of rows with a tile that are offered to the search.
OFFERED = 4
# Filters of a tile.
FILTERS = (2, 4, 8)


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    Raises
    ------
    NotApplicable
        Filters do not share their zeros in vectors, or the packed input or the output has 2**31 elements or more.
    """
    # A tile does not span two of the convolution's groups.
    length = math.gcd(pattern.vector, spec.k // spec.groups)
    shared = [each for each in FILTERS if length % each == 0]
    if not shared:
        hint = "filters that share their zeros in vectors of 2 or more"
        raise NotApplicable(f"the zeros are {pattern.structure}; it is for {hint}")
    offered = best_tiles(spec, pattern.nnz, CpuInfo.of(target), shared)[:OFFERED]
    return [DataRowSpace(NAME, f"{packed}-{tile}", pattern.nnz, packed, tile) for packed, tile in offered]
