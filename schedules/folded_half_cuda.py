"""Folded convolution for CUDA in float16, two neighbouring outputs an instruction: ``HFMA2 R, R, imm.imm, R``.

The kernels of `folded_cuda` in tiles whose threads have two outputs side by side. Where those are bound by their
instructions, these have half as many. Products are added up in float16, in blocks (`codegen.folding.half_sums`), so the
bound that kernels are held to is wider than float32's sums allow: `conv.error_bounds.half_sums`. So they are
searched only where they are asked for by name.
"""

import re

from tvm.target import Target

from tvm_sparse.conv.conv2d_tiles import SpatialTiles
from tvm_sparse.conv.dtypes import FLOAT16
from tvm_sparse.conv.error_bounds import HALF_SUMS
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.code_size import why_not_folded
from tvm_sparse.scheduling.cuda.folded.occupancy import Fold
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import FoldedTileSpace
from tvm_sparse.scheduling.cuda.folded.tile_plan import Structure, layouts, serves, side_by_side
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space

NAME = "folded_half_cuda"
# Tilings that are offered to a search, most promising first.
TILINGS = 3
_SPATIAL = re.compile(r"multistage-(\d{1,5})x(\d{1,4})-pixels1x2(-across)?")


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    NotApplicable where tensors are not float16, rows have an odd number of elements, outputs side by side do not read
    inputs side by side, no tile fits, or the weight has more non-zeros than are folded.
    """
    if reason := _why_not(spec, pattern):
        raise NotApplicable(reason)
    folding = Fold.on(target, pattern)
    tilings = layouts(spec, folding.gpu, 1, beside=2)
    structures = [_structure(tiles, across=False) for tiles in tilings]
    structures += [_structure(tiles, across=True) for tiles in tilings if side_by_side(tiles, folding.gpu)][:1]
    made = (FoldedTileSpace.of(NAME, each, folding) for each in structures)
    found = [space for space in made if space is not None and space.defaults]
    if not found:
        raise NotApplicable("no tile of outputs two by two fits a multiprocessor")
    return list[Space](sorted(found, key=lambda each: each.estimate_us or 0.0)[:TILINGS])


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space called `variant`; None where it cannot be made."""
    match = _SPATIAL.fullmatch(variant)
    if match is None or _why_not(spec, pattern):
        return None
    structure = _structure(SpatialTiles(spec, int(match[1]), int(match[2])), across=bool(match[3]))
    return FoldedTileSpace.of(NAME, structure, Fold.on(target, pattern)) if serves(structure) else None


def _why_not(spec: ConvSpec, pattern: SparsityPattern) -> str:
    if spec.dtype != FLOAT16:
        return f"it computes in {FLOAT16}, and tensors are {spec.dtype}"
    if spec.w % 2 or spec.out_w % 2:
        return f"rows of {spec.w} inputs and {spec.out_w} outputs cannot be taken two by two"
    if spec.stride[1] != 1:
        return "outputs side by side do not read inputs side by side"
    return why_not_folded(pattern.nnz)


def _structure(tiles: SpatialTiles, across: bool) -> Structure:
    return Structure(tiles, 1, "multistage", across=across, beside=2, halves=True)


FAMILY = KernelFamily(NAME, "cuda", spaces, named, code=Code.FOLDED, arithmetic=HALF_SUMS, asked_for_only=True)
