"""Folded convolution for CUDA: weights as immediates, input tiles in shared memory.

One non-zero costs one ``FFMA R, R, imm32, R`` a pixel: 16 bytes of code, no weight load and no index. The kernel is
bound by its instructions, so the decisions that set their number, output channels and pixels a thread and input
channels a chunk, matter most (`cuda_tiles`).
"""

from __future__ import annotations

from tvm.target import Target

from tvm_sparse.conv import ConvSpec
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.schedules.base import NotApplicable, Space
from tvm_sparse.schedules.cuda_plan import Structure, layouts, plan
from tvm_sparse.schedules.cuda_tiles import tile_space

NAME = "folded_cuda"
TARGET = "cuda"
# Multiply-adds a kernel may hold, non-zeros times pixels of a thread: about a minute of compilation.
MAX_MULTIPLY_ADDS = 120_000
# Multiply-adds between two barriers: as many as keep a block's warps in step, so that they share fetched code.
CHUNK = 200
# Offered to the search: mode, pixels of a thread and number of widths of tiles.
STRUCTURES = (("async", 1, 2), ("async", 2, 2), ("plain", 1, 1))


def spaces(spec: ConvSpec, pattern: SparsityPattern, _target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    Raises
    ------
    NotApplicable
        The weight has more than `MAX_MULTIPLY_ADDS` non-zeros, or one channel's tile exceeds shared memory.
    """
    if pattern.nnz > MAX_MULTIPLY_ADDS:
        raise NotApplicable(f"{pattern.nnz} non-zeros would make too much code, at most {MAX_MULTIPLY_ADDS} are folded")
    wish = CHUNK / max(pattern.density, 0.01)
    found: list[Space] = []
    for mode, pixels, count in STRUCTURES:
        if pixels <= spec.out_h and pattern.nnz * pixels <= MAX_MULTIPLY_ADDS:
            plans = (plan(spec, Structure(tiles, pixels, mode), wish) for tiles in layouts(spec, pixels))
            found += [tile_space(NAME, spec, each, fold=True) for each in plans if each is not None][:count]
    if not found:
        raise NotApplicable("the input of one row of outputs and one channel exceeds shared memory")
    return found
