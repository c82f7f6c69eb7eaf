"""Dense convolution for CUDA: the structure of `cuda_tiles` with the weight as an argument, staged like the input."""

from __future__ import annotations

from tvm.target import Target

from tvm_sparse.conv import ConvSpec
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.schedules.base import NotApplicable, Space
from tvm_sparse.schedules.cuda_tiles import layouts, plan, tile_space

NAME = "dense_cuda"
TARGET = "cuda"
CHUNK = 500
LAYOUTS = 1


def spaces(spec: ConvSpec, _pattern: SparsityPattern, _target: Target) -> list[Space]:
    found = []
    for mode in ("async", "plain"):
        for pixels in (4, 2, 1):
            plans = (plan(spec, tiles, pixels, mode, CHUNK) for tiles in layouts(spec, pixels))
            found += [tile_space(NAME, spec, each, fold=False) for each in plans if each is not None][:LAYOUTS]
    if not found:
        raise NotApplicable("the input of one row of outputs and one channel exceeds shared memory")
    return found
