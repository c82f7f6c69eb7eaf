"""Which layout of rows and which tile a kernel with weights as data should have (`cpu_data_rows`), by an estimate."""

from collections.abc import Sequence
from dataclasses import replace

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_data_rows import DataTile, Pack, PackedRows
from tvm_sparse.scheduling.cpu_rows import layouts
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.cpu_info import CpuInfo

# Of the level-1 cache, for what the filters of a block read again for each tile of pixels; the rest is for weights.
INPUT_BYTES, LINE_BYTES = 24 << 10, 64
# Cycles to pack a byte, and what of the level-2 cache is for a packed group of rows.
PACK_CYCLES_BYTE, PACKED_BYTES = 0.25, 256 << 10


def best_tiles(spec: ConvSpec, nnz: int, cpu: CpuInfo, shared: Sequence[int]) -> list[tuple[PackedRows, DataTile]]:
    """Packed inputs and tiles for a weight of `nnz` non-zeros, most promising first.

    `shared` are the numbers of filters that may form a tile. Tiles take all input channels at a time, or as many as the
    level-1 cache holds what they read of.
    """
    found = []
    for layout in layouts(spec, cpu.lanes):
        for filters in shared:
            for vectors in range(1, min(layout.vectors, most_vectors(filters, cpu)) + 1):
                # Whole tiles: what lies behind the last pixel is computed and dropped.
                whole = replace(layout, vectors=-(-layout.vectors // vectors) * vectors)
                packed = PackedRows(spec, whole, Pack.DIRECT if whole.reads_input(spec) else Pack.GROUP)
                found += [(packed, DataTile(filters, vectors, each)) for each in _channels(spec, vectors * cpu.lanes)]
    return sorted(found, key=lambda each: _cycles(nnz, *each))


def most_vectors(filters: int, cpu: CpuInfo) -> int:
    """Vectors of pixels of a tile, beside whose sums these vectors and one weight have a register each."""
    return max(1, (cpu.registers - 1) // (filters + 1))


def _channels(spec: ConvSpec, pixels: int) -> list[int]:
    """Input channels of a step: as many as the level-1 cache holds what a tile reads of, and all."""
    group = spec.c // spec.groups
    lines = -(-(pixels + spec.s - 1) * 4 // LINE_BYTES) + 1
    fitting = divisors(group, max(1, INPUT_BYTES // (spec.r * lines * LINE_BYTES)))[-1]
    return sorted({fitting, group})


def _cycles(nnz: int, packed: PackedRows, tile: DataTile) -> float:
    """Estimated cycles of a core: of the multiply-adds, and of packing the input.

    A core does two multiply-adds of vectors, and two loads, in a cycle. Half of the loads of pixels straddle a cache
    line and count twice; a position takes two cycles more.
    """
    spec, layout = packed.spec, packed.layout
    position = max(tile.filters * tile.vectors, tile.filters + 1.5 * tile.vectors) / 2 + 2
    products = nnz / tile.filters * layout.vectors / tile.vectors * position
    if packed.pack is Pack.DIRECT:
        return spec.out_h // layout.rows * products
    packed_bytes = 4 * spec.c * packed.channel
    packing = packed_bytes * PACK_CYCLES_BYTE * max(1.0, packed_bytes / PACKED_BYTES)
    return spec.out_h // layout.rows * (products + packing)
