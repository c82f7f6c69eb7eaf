"""Folded convolution for CUDA: weights as immediates, input tiles in shared memory.

One non-zero costs one ``FFMA R, R, imm32, R`` a pixel: 16 bytes of code, no weight load and no index. The kernel is
bound by its instructions, so the decisions that set their number, output channels and pixels a thread and input
channels a k-tile, matter most (`spatial_tiles`, `npq_tiles`). Where a small batch of small maps makes too few thread
blocks, these share the input channels (`split_k`).
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from tvm.target import Target

from tvm_sparse.conv.conv2d_npq import NpqTiles
from tvm_sparse.conv.conv2d_tiles import SpatialTiles
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.warp_row_tiles import WarpRowTiles
from tvm_sparse.scheduling.code_size import MAX_MULTIPLY_ADDS, why_not_folded
from tvm_sparse.scheduling.cuda.folded.npq_tiles import MAX_PIXELS, NpqSpace, npq_tilings
from tvm_sparse.scheduling.cuda.folded.occupancy import Fold, FoldedCudaSpace
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import FoldedTileSpace, TileSpace
from tvm_sparse.scheduling.cuda.folded.split_k import SPLITS, split_space, split_spaces
from tvm_sparse.scheduling.cuda.folded.tile_plan import Structure, layouts, plan, serves, side_by_side
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space

NAME = "folded_cuda"
# Multiply-adds, non-zeros times pixels of a thread, without a multistage pipeline: one compiler has all of them.
MAX_WHOLE = 120_000
# Multiply-adds of a k-tile where there is no multistage pipeline.
K_TILE = 200
# Offered to the search: pixels of a thread below each other, and how many widths of tiles for them.
TILINGS = ((1, 2), (2, 1))
# Pixels of a thread side by side, where filters are so wide or wider.
BESIDE = ((2, 3), (4, 5))
# NPQ tilings offered to the search, and pixels of warp-row tiles, most promising first.
NPQ_TILINGS, WARP_ROW_PIXELS = 4, (256, 224, 320, 288, 192)


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    NotApplicable where the weight has more than `MAX_MULTIPLY_ADDS` non-zeros, or one channel's tile exceeds shared
    memory.
    """
    if reason := why_not_folded(pattern.nnz):
        raise NotApplicable(reason)
    folding = Fold.on(target, pattern)
    gpu = folding.gpu
    found: list[Space] = []
    for pixels, count in TILINGS:
        if pixels <= spec.out_h:
            tiled = (_tiled(Structure(tiles, pixels, "multistage"), folding) for tiles in layouts(spec, gpu, pixels))
            found += islice(_fitting(tiled), count)
    across = (tiles for tiles in layouts(spec, gpu, 1) if side_by_side(tiles, gpu))
    found += _fitting(_tiled(Structure(tiles, 1, "multistage", across=True), folding) for tiles in islice(across, 1))
    npq = (NpqSpace(NAME, tiles, folding) for tiles in npq_tilings(spec, gpu))
    found += sorted(_fitting(npq), key=_estimate_us)[:NPQ_TILINGS]
    best_us = min((each.estimate_us for each in found if each.estimate_us is not None), default=math.inf)
    warp_rows = (tiles for tiles in (WarpRowTiles(spec, each) for each in WARP_ROW_PIXELS) if tiles.fits)
    if spec.out_w % 32:
        found += _fitting(NpqSpace(NAME, tiles, folding) for tiles in islice(warp_rows, 1))
    found += split_spaces(NAME, spec, folding, best_us)
    if not found and pattern.nnz <= MAX_WHOLE:
        # Small blocks with large windows: too many copies a thread for a multistage pipeline.
        plans = (
            plan(Structure(tiles, 1, "single"), gpu, K_TILE / max(pattern.density, 0.01))
            for tiles in layouts(spec, gpu, 1)
        )
        found += [TileSpace(NAME, each, fold=True) for each in plans if each is not None][:1]
    if not found:
        many = f"{pattern.nnz} non-zeros need a multistage pipeline of copies, and none fits a multiprocessor"
        few = "the input of one row of outputs and one channel exceeds shared memory"
        raise NotApplicable(many if pattern.nnz > MAX_WHOLE else few)
    # Last: slower than the best others wherever timed but once, by 3 to 50% (docs/lab/cuda-folded.md).
    return [*sorted(found, key=_estimate_us), *_beside(spec, folding)]


def _beside(spec: ConvSpec, folding: Fold) -> list[Space]:
    """Spaces whose threads have several pixels side by side, on maps that still make a warp."""
    offered = (beside for beside, width in BESIDE if spec.s >= width and spec.out_h * spec.out_w >= 32 * beside)
    pairs = ((beside, tiles) for beside in offered for tiles in layouts(spec, folding.gpu, 1, beside)[:1])
    return list(_fitting(_tiled(Structure(tiles, 1, "multistage", beside=beside), folding) for beside, tiles in pairs))


def _fitting(spaces: Iterable[FoldedCudaSpace | None]) -> Iterator[FoldedCudaSpace]:
    """Those that can be made and some of whose decisions fit."""
    return (each for each in spaces if each is not None and each.defaults)


def _estimate_us(space: Space) -> float:
    return space.estimate_us or 0.0


_WARP_ROWS = re.compile(r"warp-rows(\d{1,4})")
_NPQ = re.compile(r"(?:split(\d)-)?npq(\d{1,4})")
_SPATIAL = re.compile(r"multistage-(\d{1,5})x(\d{1,4})-pixels([12])(?:x([24]))?(-across)?")


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space called `variant`, whether or not `spaces` offers it to a search today; None where it cannot be made.

    Logs outlive the choice of what is offered, and one space is made ten times faster than all of them.
    """
    if pattern.nnz > MAX_MULTIPLY_ADDS:
        return None
    folding = Fold.on(target, pattern)
    if match := _SPATIAL.fullmatch(variant):
        rows, columns, pixels = map(int, match.groups()[:3])
        tiles, beside = SpatialTiles(spec, rows, columns), int(match[4] or 1)
        structure = Structure(tiles, pixels, "multistage", across=bool(match[5]), beside=beside)
        return _tiled(structure, folding) if serves(structure) else None
    if match := _WARP_ROWS.fullmatch(variant):
        warp_rows = WarpRowTiles(spec, int(match[1]))
        fits = 0 < warp_rows.pixels <= MAX_PIXELS and warp_rows.fits
        return NpqSpace(NAME, warp_rows, folding) if fits else None
    match = _NPQ.fullmatch(variant)
    if match is None or not 0 < int(match[2]) <= MAX_PIXELS:
        return None
    npq = NpqTiles(spec, int(match[2]))
    if match[1] is None:
        return NpqSpace(NAME, npq, folding)
    parts = int(match[1])
    return split_space(NAME, npq, parts, folding) if parts in SPLITS and folding.gpu.has_clusters else None


def _tiled(structure: Structure, folding: Fold) -> FoldedTileSpace | None:
    """The space of one way to cut the output, or None where there would be too much code."""
    if folding.pattern.nnz * structure.pixels * structure.beside > MAX_MULTIPLY_ADDS:
        return None
    return FoldedTileSpace.of(NAME, structure, folding)


def reads_volumes(spec: ConvSpec, _decisions: Any) -> ConvSpec:
    """`spec` with the volumes within, whose maps a kernel reads as one; without where channels of taps lie apart."""
    volumes = spec.volumes
    is_line = volumes is not None and spec.groups == 1 and (volumes.dilation == 1 or volumes.taps == 1)
    return replace(spec, volumes=volumes.within if volumes is not None and is_line else None)


FAMILY = KernelFamily(NAME, "cuda", spaces, named, code=Code.FOLDED, is_predicted=True, reads_volumes=reads_volumes)
