"""The structure of folded CUDA kernels whose thread blocks share the input channels of small maps: split-K clusters.

Outermost first::

    blockIdx.x over NPQ tiles; blockIdx.y over tiles of `filters` output channels; blockIdx.z over parts of the input
    channels
      threadIdx.x over the pixels of the tile
        registers = 0
        for each k-tile of `channels` of the part's input channels, in a multistage pipeline (`multistage_pipeline`)
          copy the rows that the tile needs, zeros for padding included, to shared memory
          straight-line multiply-adds
        keep the partial sums in shared memory
        add up those of all parts for a share of the output channels; store with bias, residual and ReLU

The blocks of all parts are a cluster (`cluster_reduction`); each adds up as many output channels as any other, so
`filters` is a multiple of the number of parts.
"""

import operator
from collections.abc import Sequence
from functools import partial, reduce
from itertools import islice
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, reduce_axes
from tvm_sparse.conv.conv2d_npq import packed_input, product, written_in_place
from tvm_sparse.conv.output_tiling import PixelTiling
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import DEPENDENT_LAUNCH, FOLD, PIPELINE_STAGES, SPLIT_K, DependentLaunch
from tvm_sparse.scheduling.cuda.folded.bank_conflicts import row_stride
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KernelCounts, Pipeline
from tvm_sparse.scheduling.cuda.folded.npq_tiles import channel_bytes, npq_counts, npq_tilings
from tvm_sparse.scheduling.cuda.folded.occupancy import ACCUMULATORS, Fold, FoldedCudaSpace
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import stage_input
from tvm_sparse.scheduling.space import Space, divisors

# Parts of the input channels, largest first: sizes of clusters that every GPU with clusters runs; how many are offered.
SPLITS, OFFERED = (8, 4, 2), 2
# Pixels of all images together from which on there are enough thread blocks without sharing.
MAX_SPLIT_PIXELS = 4096
# About how many threads a block has.
THREADS = 224
# Weights that a part has of each filter, zeros included, at least: with fewer, joining the parts takes longest.
MIN_WEIGHTS = 32
# Estimates are off by a fifth: a space is offered where its own is at most this much longer than the best other one.
WORTH = 1.2


def split_spaces(name: str, spec: ConvSpec, folding: Fold, best_us: float) -> list[Space]:
    """Spaces of a small map; none where they are not worth it, or where the GPU has no clusters.

    `best_us` is the estimate of the best kernel without parts.
    """
    sizes = [each for each in SPLITS if spec.weight_shape[1] // each * spec.r * spec.s >= MIN_WEIGHTS]
    tilings = sorted(npq_tilings(spec, folding.gpu), key=lambda each: abs(each.pixels - THREADS))
    if not folding.gpu.has_clusters or spec.pixels > MAX_SPLIT_PIXELS or not tilings:
        return []
    found = (split_space(name, tilings[0], parts, folding) for parts in sizes)
    offered = islice((each for each in found if each is not None and each.defaults), OFFERED)
    return [each for each in offered if each.estimate_us is not None and each.estimate_us <= WORTH * best_us]


def split_space(name: str, tiles: PixelTiling, parts: int, folding: Fold) -> "SplitKSpace | None":
    """The space of one number of parts and one tiling, or None where the channels do not divide between the parts."""
    spec = tiles.spec
    filters = [each for each in divisors(spec.k // spec.groups, ACCUMULATORS) if each % parts == 0]
    channels = divisors(spec.weight_shape[1] // parts, folding.gpu.shared_bytes // channel_bytes(tiles))
    if spec.weight_shape[1] % parts or not filters or not channels:
        return None
    candidates = {"filters": filters, "channels": channels, **folding.pipelines}
    del candidates["order"]
    # Blocks of a cluster start together: there is no telling where these find room.
    candidates["dependent_launch"] = [x for x in candidates["dependent_launch"] if x != DependentLaunch.AT_ONCE]
    return SplitKSpace(name, tiles, parts, candidates, folding)


class SplitKSpace(FoldedCudaSpace):
    """See `split_space`."""

    def __init__(self, name: str, tiles: PixelTiling, parts: int, candidates: dict[str, Sequence[int]], folding: Fold):
        self.tiles, self.parts = tiles, parts
        variant = f"split{parts}-{tiles.variant}"
        super().__init__(name, variant, partial(conv2d_split_k, tiles, parts), candidates, folding)

    def tile_counts(self, tile: Sequence[Any], pipeline: Pipeline) -> KernelCounts:
        filters, channels = tile
        return npq_counts(self.tiles, self.folding, filters, channels, pipeline, self.parts)

    def schedule_with(self, sch: Schedule, decisions: Sequence[Any]) -> None:
        conv, pack, partial, total, out = (sch.get_sblock(each) for each in ("conv", "pack", "partial", "total", "out"))
        sch.set_scope(conv, 0, "local")
        sch.set_scope(total, 0, "local")
        filters, channels, stages, blocks, launch = decisions
        part, tile, k, pixel, c, r, s = sch.get_loops(conv)
        k_outer, k_inner = sch.split(k, [None, filters])
        c_outer, c_inner = sch.split(c, [None, channels])
        sch.reorder(tile, k_outer, part, pixel, c_outer, c_inner, r, s, k_inner)
        _bind(sch, [tile, k_outer, part, pixel])
        sch.reverse_compute_at(partial, pixel, preserve_unit_loops=True)
        stage_input(sch, pack, c_outer, row_stride(self.tiles))
        sch.annotate(c_inner, FOLD, blocks)
        sch.annotate(c_outer, PIPELINE_STAGES, stages)
        sch.annotate(c_outer, DEPENDENT_LAUNCH, launch)

        tile, k, pixel = sch.get_loops(out)
        k_outer, rest = sch.split(k, [None, filters])
        k_part, k_share = sch.split(rest, [self.parts, None])
        sch.reorder(tile, k_outer, k_part, pixel, k_share)
        _bind(sch, [tile, k_outer, k_part, pixel])
        sch.compute_at(total, pixel, preserve_unit_loops=True)
        sch.annotate(sch.get_loops(total)[-2], SPLIT_K, self.parts)
        sch.unroll(k_share)
        # Last: once a reduction is split in two, loops around it can no longer be bound.
        init = sch.decompose_reduction(conv, c_outer)
        sch.unroll(sch.get_loops(init)[-1])
        sch.unroll(sch.get_loops(partial)[-2])


def _bind(sch: Schedule, loops: list) -> None:
    for loop, axis in zip(loops, ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x"), strict=True):
        sch.bind(loop, axis)


def conv2d_split_k(tiles: PixelTiling, splits: int) -> tirx.PrimFunc:
    """The form with `splits` partial sums an output; `splits` divides the input channels of a group.

    Arguments as `conv2d.conv2d`. ``pack`` has axes (tile, c, row, copy, lane), ``conv`` and ``partial``, a copy of it,
    (split, tile, k, pixel of the tile); ``total``, which adds them up in order, and ``out`` (tile, k, pixel).
    """
    spec = tiles.spec
    arguments = arguments_of(spec)
    packed = packed_input(tiles, arguments["x"])
    _, r, s = reduce_axes(spec)
    share = spec.weight_shape[1] // splits
    c = te.reduce_axis((0, share), "c")
    shape = (tiles.count, spec.k, tiles.pixels)

    def conv_at(split: tirx.Expr, *at: tirx.Expr) -> tirx.Expr:
        tap = (split * share + c, r, s)
        return te.sum(product(tiles, packed, arguments[WEIGHT], at, tap), axis=[c, r, s])

    def total_at(*at: tirx.Expr) -> tirx.Expr:
        return reduce(operator.add, (parts(split, *at) for split in range(splits)))

    conv = te.compute((splits, *shape), conv_at, name="conv")
    parts = te.compute((splits, *shape), lambda *at: conv[at], name="partial")
    return written_in_place(tiles, arguments, te.compute(shape, total_at, name="total"))
