"""Weights pruned in vectors of filters, for CPUs: tiles of filters share each load of the input; weights are data.

A vector pattern has V filters that share each position; a tile takes as many of them as registers allow. Then a
position loads its pixels once for all filters of the tile, and its weights once for all vectors of pixels: of 4 filters
by 3 vectors 7 loads for 12 multiply-adds, where unstructured weights need 12 and more. Vectors run along pixels and not
along filters, as outputs are then stored as they lie in memory, and any V from 2 on is served (docs/measurements.md).
"""

import re
from dataclasses import replace

from tvm.target import Target

from tvm_sparse.conv.conv2d_rows import RowGroups
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_data_rows import DataRowSpace, DataTile, require_short
from tvm_sparse.scheduling.cpu_rows import layouts
from tvm_sparse.scheduling.space import NotApplicable, Space, divisors
from tvm_sparse.target.cpu_info import CpuInfo

NAME = "vector_cpu"
TARGET = "llvm"
# Layouts of rows with a tile that are offered to the search.
OFFERED = 4
# Filters of a tile.
FILTERS = (2, 4, 8)
# Of the level-1 cache, for what the filters of a block read again for each tile of pixels; the rest is for weights.
INPUT_BYTES, LINE_BYTES = 24 << 10, 64


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    Raises
    ------
    NotApplicable
        Filters do not share their zeros in vectors, or the packed input or the output has 2**31 elements or more.
    """
    length = int(found[1]) if (found := re.fullmatch(r"vector(\d+)", pattern.structure)) else 1
    shared = [each for each in FILTERS if length % each == 0]
    if not shared:
        hint = "filters that share their zeros in vectors of 2 or more"
        raise NotApplicable(f"the zeros are {pattern.structure}; it is for {hint}")
    cpu = CpuInfo.of(target)
    tiled = [
        (replace(layout, vectors=-(-layout.vectors // vectors) * vectors), DataTile(filters, vectors, channels))
        for layout in layouts(spec, cpu.lanes)
        for filters in shared
        for vectors in range(1, min(layout.vectors, _most_vectors(filters, cpu)) + 1)
        for channels in _channels(spec, vectors * cpu.lanes)
    ]
    tiled.sort(key=lambda each: _cost(spec, *each))
    for layout, _ in tiled[:OFFERED]:
        require_short(spec, layout)
    return [
        DataRowSpace(NAME, f"rows{layout.rows}x{layout.row_stride}-{tile}", spec, pattern.nnz, layout, tile)
        for layout, tile in tiled[:OFFERED]
    ]


def _most_vectors(filters: int, cpu: CpuInfo) -> int:
    """Vectors of pixels of a tile, beside whose sums these vectors and one weight have a register each."""
    return max(1, (cpu.registers - 1) // (filters + 1))


def _channels(spec: ConvSpec, pixels: int) -> list[int]:
    """Input channels of a step: as many as the level-1 cache holds what a tile reads of, and all."""
    group = spec.c // spec.groups
    lines = -(-(pixels + spec.s - 1) * 4 // LINE_BYTES) + 1
    fitting = divisors(group, max(1, INPUT_BYTES // (spec.r * lines * LINE_BYTES)))[-1]
    return sorted({fitting, group})


def _cost(spec: ConvSpec, layout: RowGroups, tile: DataTile) -> float:
    """Cycles a useful multiply-add, of two vectors of which, and two loads, a core does in a cycle.

    Half of the loads of pixels straddle a cache line and count twice; a position takes a cycle more.
    """
    products = tile.filters * tile.vectors
    return layout.waste(spec) * (max(products, tile.filters + 1.5 * tile.vectors) / 2 + 1) / products
