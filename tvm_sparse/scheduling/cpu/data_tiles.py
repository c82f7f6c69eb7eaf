"""Which layout of rows and which tile a kernel with weights as data should have (`data_rows`), by an estimate."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tvm_sparse.conv.conv2d_rows import RowGroups
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.cost import Ranking, rounds
from tvm_sparse.scheduling.cpu.cuts import shared_cycles
from tvm_sparse.scheduling.cpu.data_rows import FILTERS, DataTile, Pack, PackedRows
from tvm_sparse.scheduling.cpu.fit import SPARSE
from tvm_sparse.scheduling.cpu.rows import layouts
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.cpu_info import LINE_BYTES, CpuInfo

_VARIANT = re.compile(r"rows(\d{1,9})x(\d{1,9})-tile(\d{1,9})x(\d{1,9})-channels(\d{1,9})")


def best_tiles(
    spec: ConvSpec, nnz: int, cpu: CpuInfo, shared: Sequence[int], threads: int, count: int
) -> list[tuple[PackedRows, DataTile]]:
    """The `count` most promising packed inputs and tiles for a weight of `nnz` non-zeros, the best first.

    `shared` are the numbers of filters that may form a tile. Tiles take all input channels at a time, or as many as the
    level-1 cache holds what they read of. Groups of rows are packed by themselves; or, where that is better for several
    `threads`, all is packed first, so that these may share a group's filters.
    """
    found: dict[str, tuple[PackedRows, DataTile]] = {}
    for way in _tiles(spec, cpu, tuple(shared), threads).best(nnz):
        found.setdefault(variant_of(*way), way)
        if len(found) == count:
            break
    return list(found.values())


def least_cycles(spec: ConvSpec, nnz: int, cpu: CpuInfo, shared: Sequence[int]) -> float:
    """What the first of `best_tiles` takes one thread."""
    return _tiles(spec, cpu, tuple(shared), threads=1).least_cycles(nnz)


@lru_cache(maxsize=256)
def _tiles(spec: ConvSpec, cpu: CpuInfo, shared: tuple[int, ...], threads: int) -> Ranking[tuple[PackedRows, DataTile]]:
    """All tiles. Of a convolution up to a thousand, which takes 10 ms; who prunes asks for many densities."""
    found = []
    for layout in _layouts(spec, cpu.lanes):
        for filters in shared:
            for vectors in range(1, min(layout.vectors, most_vectors(filters, cpu)) + 1):
                for packed in _packed(spec, layout, vectors, threads):
                    found += [(packed, DataTile(filters, vectors, each)) for each in _channels(spec, layout, vectors)]
    return Ranking.of(found, lambda nnz, way: cycles(nnz, *way, threads))


def _layouts(spec: ConvSpec, lanes: int) -> list[RowGroups]:
    """Ways to lay out output rows, those among them whose rows share their padding: 7x7 maps take 56 floats for 63."""
    sharing = [RowGroups.of(spec, rows, lanes, shares_padding=True) for rows in divisors(spec.out_h)]
    return list(dict.fromkeys([*layouts(spec, lanes), *sharing]))


def _packed(spec: ConvSpec, layout: RowGroups, vectors: int, threads: int) -> list[PackedRows]:
    """Packed inputs for tiles of so many vectors; what lies behind the last pixel is computed and dropped."""
    whole = replace(layout, vectors=-(-layout.vectors // vectors) * vectors)
    places = [Pack.DIRECT] if whole.reads_input(spec) else [Pack.GROUP, Pack.ROOT][: min(2, threads)]
    return [PackedRows(spec, whole, each) for each in places]


def most_vectors(filters: int, cpu: CpuInfo) -> int:
    """Vectors of pixels of a tile, beside whose sums these vectors and one weight have a register each."""
    return max(1, (cpu.registers - 1) // (filters + 1))


def _channels(spec: ConvSpec, layout: RowGroups, vectors: int) -> list[int]:
    """Input channels of a step: as many as the level-1 cache holds what a tile reads of, and all."""
    group = spec.c // spec.groups
    return sorted({divisors(group, max(1, _fitting(spec, layout, vectors)))[-1], group})


def _fitting(spec: ConvSpec, layout: RowGroups, vectors: int) -> int:
    """Input channels of which the level-1 cache holds what a tile of so many vectors reads.

    Taps of one phase read what overlaps, unless the tile is so short that each row of them reads lines of its own.
    """
    down, right = ((taps - 1) * dilation for taps, dilation in zip((spec.r, spec.s), spec.dilation, strict=True))
    phases_y, phases_x, *_ = layout.packed_shape(spec)
    row = vectors * layout.lanes + right // spec.stride[1]
    together = phases_y * _lines(row + down // spec.stride[0] * layout.row_stride)
    return SPARSE.input_bytes // (phases_x * min(together, spec.r * _lines(row)) * LINE_BYTES)


def _lines(floats: int) -> int:
    """Lines of the cache that so many floats may touch."""
    return -(-4 * floats // LINE_BYTES) + 1


def cycles(nnz: int, packed: PackedRows, tile: DataTile, threads: int = 1) -> float:
    """Estimated cycles of a core: of the multiply-adds, and of packing the input; a straight line in `nnz`.

    Of several threads it is so many times what the busiest takes, with what it reads that others have written or read.

    A core does `operations` loads and multiply-adds in a cycle. Loads of pixels that straddle a cache line, half of
    them with AVX2 and nearly all with AVX-512, count twice. A vector that is read from the level-2 cache takes
    `miss_cycles` more, and a list of positions `list_cycles`, as its end is mispredicted and its sums are read and
    written.
    """
    spec, layout = packed.spec, packed.layout
    loads = tile.filters + tile.vectors * (1 + 4 * layout.lanes / LINE_BYTES)
    position = (tile.filters * tile.vectors + loads) / SPARSE.operations
    if tile.channels > _fitting(spec, layout, tile.vectors):
        position += SPARSE.miss_cycles * tile.vectors
    lists = spec.k // tile.filters * (spec.c // spec.groups // tile.channels)
    products = layout.vectors / tile.vectors * (nnz / tile.filters * position + lists * SPARSE.list_cycles)
    groups = spec.out_h // layout.rows
    packed_bytes = 4 * spec.c * packed.channel
    packing = packed_bytes * SPARSE.pack_cycles_byte * max(1.0, packed_bytes / SPARSE.packed_bytes)
    if packed.pack is Pack.GROUP:
        return rounds(spec.n * groups, threads) * (products + packing) * threads + SPARSE.value_cycles * nnz * (
            threads - 1
        )
    tiles = -(-spec.k // FILTERS)
    busiest = rounds(spec.n * groups * tiles, threads) * products / tiles
    shared = shared_cycles(spec, threads)
    together = min(groups, threads)
    by_rows = shared / together + SPARSE.value_cycles * nnz * (threads - 1) * together / threads
    return busiest * threads + min(shared, by_rows) + (0.0 if packed.pack is Pack.DIRECT else spec.n * packing)


def of_variant(
    spec: ConvSpec, nnz: int, variant: str, cpu: CpuInfo, threads: int
) -> tuple[PackedRows, DataTile] | None:
    """The packed input and the tile that a space's variant names, as `variant_of` does; None where it fits not."""
    if not (match := _VARIANT.fullmatch(variant)):
        return None
    rows, row_stride, *tile = map(int, match.groups())
    filters, vectors, channels = tile
    fitting = [each for each in _layouts(spec, cpu.lanes) if (each.rows, each.row_stride) == (rows, row_stride)]
    if not all(tile) or not fitting or spec.c // spec.groups % channels:
        return None
    (layout,) = fitting
    if spec.k // spec.groups % filters or vectors > min(layout.vectors, most_vectors(filters, cpu)):
        return None
    found = DataTile(filters, vectors, channels)
    packed = min(_packed(spec, layout, vectors, threads), key=lambda each: cycles(nnz, each, found, threads))
    return packed, found


def variant_of(packed: PackedRows, tile: DataTile) -> str:
    """What a space of this layout and tile is called beside its schedule."""
    return f"{packed}-{tile}"
