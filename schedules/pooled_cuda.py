"""Folded convolution for CUDA that writes the largest of each 2x2 outputs: with the max pool that follows it.

The kernels of `folded_cuda` in tiles, whose warps have two rows of 16 columns, so that windows do not leave a warp
(`conv.pooled`). On large maps the convolution's output and the pool's reading of it, which do not exist then, cost more
than what the lanes of a window exchange. It serves nothing but layers with such a pool behind them, so it is offered
where it is asked for by name, and the compiler asks (`plan.pooled_layers`).
"""

import re

from tvm.target import Target

from tvm_sparse.conv.conv2d_tiles import SpatialTiles
from tvm_sparse.conv.pooled import COLUMNS, why_not_pooled
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.code_size import MAX_MULTIPLY_ADDS, why_not_folded
from tvm_sparse.scheduling.cuda.folded.occupancy import Fold
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import FoldedTileSpace
from tvm_sparse.scheduling.cuda.folded.tile_plan import Structure, serves
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space, divisors

NAME = "pooled_cuda"
_SPATIAL = re.compile(r"multistage-(\d{1,5})x(\d{1,4})-pixels1(-across)?")


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec` with a 2x2 max pool, most promising first.

    NotApplicable where the output is not float32 or its maps have an odd size, a residual is added, no tile of a
    multiple of 16 columns divides its rows, filters are no multiple of 4, or the weight has more non-zeros than are
    folded.
    """
    if reason := why_not_pooled(spec):
        raise NotApplicable(reason)
    if reason := why_not_folded(pattern.nnz):
        raise NotApplicable(reason)
    folding = Fold.on(target, pattern)
    # Of tiles that are estimated alike the widest.
    widths = [each for each in reversed(divisors(spec.out_w)) if each % COLUMNS == 0]
    found = [_space(spec, columns, columns < spec.out_w, folding) for columns in widths]
    fitting = [each for each in found if each is not None and each.defaults]
    if not fitting:
        raise NotApplicable(f"no tile of two rows of {COLUMNS} columns divides an output of {spec.out_h}x{spec.out_w}")
    return list[Space](sorted(fitting, key=lambda each: each.estimate_us or 0.0))


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space called `variant`; None where it cannot be made."""
    match = _SPATIAL.fullmatch(variant)
    if match is None or why_not_pooled(spec) or pattern.nnz > MAX_MULTIPLY_ADDS or int(match[1]) != spec.out_h:
        return None
    return _space(spec, int(match[2]), bool(match[3]), Fold.on(target, pattern))


def _space(spec: ConvSpec, columns: int, across: bool, folding: Fold) -> FoldedTileSpace | None:
    structure = Structure(SpatialTiles(spec, spec.out_h, columns), 1, "multistage", across=across, pools=True)
    return FoldedTileSpace.of(NAME, structure, folding) if columns and serves(structure) else None


FAMILY = KernelFamily(NAME, "cuda", spaces, named, code=Code.FOLDED, asked_for_only=True, computes_pool=True)
