"""Folded convolution for CUDA: weights as immediates, input tiles in shared memory.

One non-zero costs one ``FFMA R, R, imm32, R`` a pixel: 16 bytes of code, no weight load and no index. The kernel is
bound by its instructions, so the decisions that set their number, output channels and pixels a thread and input
channels a chunk, matter most (`cuda_tiles`, `cuda_runs`). Where
a small batch of small maps makes too few thread blocks, these share the input channels (`cuda_split`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import islice

from tvm.target import Target

from tvm_sparse.conv.conv2d_npq import Runs
from tvm_sparse.conv.conv2d_tiles import Tiles
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.warp_row_tiles import Strips
from tvm_sparse.scheduling.cuda.npq_tiles import MAX_LENGTH, lengths, run_plan, run_space
from tvm_sparse.scheduling.cuda.spatial_tiles import Fold, folded_tile_space, plain_tile_space
from tvm_sparse.scheduling.cuda.split_k import SPLITS, split_space, split_spaces
from tvm_sparse.scheduling.cuda.tile_plan import Structure, layouts, plan, serves, side_by_side
from tvm_sparse.scheduling.space import NotApplicable, Space

NAME = "folded_cuda"
TARGET = "cuda"
# Multiply-adds a kernel may hold, non-zeros times pixels of a thread. Each takes a compiler half a millisecond to a
# whole one: with the tiles of output channels side by side, about a minute on 8 cores.
MAX_MULTIPLY_ADDS = 400_000
# The same where there is no ring, so that one compiler has all of it.
MAX_WHOLE = 120_000
# Multiply-adds of a chunk where there is no ring.
CHUNK = 200
# Offered to the search: pixels of a thread below each other, and how many widths of tiles for them.
TILINGS = ((1, 2), (2, 1))
# Pixels of a thread side by side, where filters are so wide or wider.
BESIDE = ((2, 3), (4, 5))
# Runs of pixels offered to the search, and pixels of strips, most promising first.
RUNS, STRIPS = 4, (256, 224, 320, 288, 192)


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    Raises
    ------
    NotApplicable
        The weight has more than `MAX_MULTIPLY_ADDS` non-zeros, or one channel's tile exceeds shared memory.
    """
    if pattern.nnz > MAX_MULTIPLY_ADDS:
        raise NotApplicable(f"{pattern.nnz} non-zeros would make too much code, at most {MAX_MULTIPLY_ADDS} are folded")
    folding, found = Fold.on(target, pattern), []
    gpu = folding.gpu
    for pixels, count in TILINGS:
        if pixels <= spec.out_h:
            tiled = (_tiled(spec, Structure(tiles, pixels, "ring"), folding) for tiles in layouts(spec, gpu, pixels))
            found += list(islice((each for each in tiled if each is not None), count))
    across = (tiles for tiles in layouts(spec, gpu, 1) if side_by_side(spec, tiles, gpu))
    found += _each(_tiled(spec, Structure(tiles, 1, "ring", across=True), folding) for tiles in islice(across, 1))
    runs = (run_space(NAME, spec, run_plan(spec, each), folding) for each in lengths(spec, gpu))
    found += sorted(_each(runs), key=lambda each: each.estimate_us or 0)[:RUNS]
    best_us = min((each.estimate_us for each in found if each.estimate_us is not None), default=math.inf)
    strips = [each for each in map(Strips, STRIPS) if each.serves(spec) and spec.out_w % 32]
    found += _each(run_space(NAME, spec, run_plan(spec, strip), folding) for strip in strips[:1])
    found += split_spaces(NAME, spec, folding, best_us)
    if not found and pattern.nnz <= MAX_WHOLE:
        # Small blocks with large windows: too many copies a thread for a ring.
        plans = (
            plan(spec, Structure(tiles, 1, "plain"), gpu, CHUNK / max(pattern.density, 0.01))
            for tiles in layouts(spec, gpu, 1)
        )
        found = [plain_tile_space(NAME, spec, each) for each in plans if each is not None][:1]
    if not found:
        if pattern.nnz > MAX_WHOLE:
            raise NotApplicable(f"{pattern.nnz} non-zeros need a ring of copies, and none fits a multiprocessor")
        raise NotApplicable("the input of one row of outputs and one channel exceeds shared memory")
    # Last: slower than the best others wherever timed but once, by 3 to 50% (docs/cuda.md).
    return [*sorted(found, key=lambda each: each.estimate_us or 0), *_beside(spec, folding)]


def _beside(spec: ConvSpec, folding: Fold) -> list[Space]:
    """Spaces whose threads have several pixels side by side, on maps that still make a warp."""
    offered = (beside for beside, width in BESIDE if spec.s >= width and spec.out_h * spec.out_w >= 32 * beside)
    pairs = ((beside, tiles) for beside in offered for tiles in layouts(spec, folding.gpu, 1, beside)[:1])
    return _each(_tiled(spec, Structure(tiles, 1, "ring", beside=beside), folding) for beside, tiles in pairs)


def _each(spaces: Iterable[Space | None]) -> list[Space]:
    """Those that can be made."""
    return [each for each in spaces if each is not None]


_STRIP = re.compile(r"strip(\d{1,4})")
_RUN, _RING = (
    re.compile(r"(?:split(\d)-)?run(\d{1,4})"),
    re.compile(r"ring-(\d{1,5})x(\d{1,4})-pixels([12])(?:x([24]))?(-across)?"),
)


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space called `variant`, whether or not `spaces` offers it to a search today; None where it cannot be made.

    Logs outlive the choice of what is offered, and one space is made ten times faster than all of them.
    """
    if pattern.nnz > MAX_MULTIPLY_ADDS:
        return None
    folding = Fold.on(target, pattern)
    if match := _RING.fullmatch(variant):
        rows, columns, pixels = map(int, match.groups()[:3])
        structure = Structure(Tiles(rows, columns), pixels, "ring", across=bool(match[5]), beside=int(match[4] or 1))
        return _tiled(spec, structure, folding) if serves(spec, structure) else None
    if match := _STRIP.fullmatch(variant):
        strips = Strips(int(match[1]))
        fits = 0 < strips.length <= MAX_LENGTH and strips.serves(spec)
        return run_space(NAME, spec, run_plan(spec, strips), folding) if fits else None
    match = _RUN.fullmatch(variant)
    if match is None or not 0 < int(match[2]) <= MAX_LENGTH:
        return None
    run = run_plan(spec, Runs(int(match[2])))
    if match[1] is None:
        return run_space(NAME, spec, run, folding)
    parts = int(match[1])
    return split_space(NAME, spec, run, parts, folding) if parts in SPLITS and folding.gpu.has_clusters else None


def _tiled(spec: ConvSpec, structure: Structure, folding: Fold) -> Space | None:
    """The space of one way to cut the output, or None where no ring of copies fits."""
    if folding.pattern.nnz * structure.pixels * structure.beside > MAX_MULTIPLY_ADDS:
        return None
    decisions = plan(spec, structure, folding.gpu, 0)
    return None if decisions is None else folded_tile_space(NAME, spec, decisions, folding)
