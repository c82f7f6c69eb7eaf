"""Folded convolution for CUDA: weights as immediates, input tiles in shared memory.

One non-zero costs one ``FFMA R, R, imm32, R`` a pixel: 16 bytes of code, no weight load and no index. The kernel is
bound by its instructions, so the decisions that set their number, output channels and pixels a thread and input
channels a chunk, matter most (`cuda_tiles`, `cuda_runs`). Where
a small batch of small maps makes too few thread blocks, these share the input channels (`cuda_split`).
"""

from __future__ import annotations

import math
from itertools import islice

from tvm.target import Target

from tvm_sparse.conv import ConvSpec
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.schedules.base import NotApplicable, Space
from tvm_sparse.schedules.cuda_limits import shared_memory_bytes
from tvm_sparse.schedules.cuda_plan import Structure, layouts, plan
from tvm_sparse.schedules.cuda_runs import lengths, run_plan, run_space
from tvm_sparse.schedules.cuda_split import split_spaces
from tvm_sparse.schedules.cuda_tiles import Fold, folded_tile_space, plain_tile_space

NAME = "folded_cuda"
TARGET = "cuda"
# Multiply-adds a kernel may hold, non-zeros times pixels of a thread. Each takes a compiler half a millisecond to a
# whole one: with the tiles of output channels side by side, about a minute on 8 cores.
MAX_MULTIPLY_ADDS = 400_000
# The same where there is no ring, so that one compiler has all of it.
MAX_WHOLE = 120_000
# Multiply-adds of a chunk where there is no ring.
CHUNK = 200
# Offered to the search: pixels of a thread, and how many widths of tiles for them.
TILINGS = ((1, 2), (2, 1))
# Runs of pixels offered to the search.
RUNS = 3


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    Raises
    ------
    NotApplicable
        The weight has more than `MAX_MULTIPLY_ADDS` non-zeros, one channel's tile exceeds shared memory, or all that is
        read is padding.
    """
    if pattern.nnz > MAX_MULTIPLY_ADDS:
        raise NotApplicable(f"{pattern.nnz} non-zeros would make too much code, at most {MAX_MULTIPLY_ADDS} are folded")
    if _reads_only_padding(spec):
        # TVM makes constants of the copies, and a ring copies from an input.
        raise NotApplicable("no output reads any of the input, only padding")
    folding, found = Fold(pattern, shared_memory_bytes(target)), []
    for pixels, count in TILINGS:
        if pixels <= spec.out_h and pattern.nnz * pixels <= MAX_MULTIPLY_ADDS:
            plans = (plan(spec, Structure(tiles, pixels, "ring"), 0) for tiles in layouts(spec, pixels))
            tiled = (folded_tile_space(NAME, spec, each, folding) for each in plans if each is not None)
            found += list(islice((each for each in tiled if each is not None), count))
    runs = (run_space(NAME, spec, run_plan(spec, each), folding) for each in lengths(spec)[:RUNS])
    found += [each for each in runs if each is not None]
    best_us = min((each.estimate_us for each in found if each.estimate_us is not None), default=math.inf)
    found += split_spaces(NAME, spec, folding, target, best_us)
    if not found and pattern.nnz <= MAX_WHOLE:
        # Small blocks with large windows: too many copies a thread for a ring.
        plans = (
            plan(spec, Structure(tiles, 1, "plain"), CHUNK / max(pattern.density, 0.01)) for tiles in layouts(spec, 1)
        )
        found = [plain_tile_space(NAME, spec, each) for each in plans if each is not None][:1]
    if not found:
        raise NotApplicable("the input of one row of outputs and one channel exceeds shared memory")
    return sorted(found, key=lambda each: each.estimate_us or 0)


def _reads_only_padding(spec: ConvSpec) -> bool:
    """Whether the last row or column that an output reads lies before the input's first."""
    sizes = zip((spec.out_h, spec.out_w), spec.stride, (spec.r, spec.s), spec.dilation, spec.padding[:2], strict=True)
    return any((out - 1) * stride + (taps - 1) * dilation < before for out, stride, taps, dilation, before in sizes)
