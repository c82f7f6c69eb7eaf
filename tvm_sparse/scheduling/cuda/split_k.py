"""The structure of folded CUDA kernels whose thread blocks share the input channels of small maps.

Outermost first::

    blockIdx.x over runs; blockIdx.y over tiles of `filters` output channels; blockIdx.z over parts of input channels
      threadIdx.x over the pixels of the run
        registers = 0
        for each chunk of `channels` of the part's input channels, as a ring (`ring`)
          copy the rows that the run needs, zeros for padding included, to shared memory
          straight-line multiply-adds
        keep the partial sums in shared memory
        add up those of all parts for a share of the output channels; store with bias, residual and ReLU

The blocks of all parts are a cluster (`tvm_sparse.cluster`); each adds up as many output channels as any other, so
`filters` is a multiple of the number of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv.conv2d_split_k import conv2d_split
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import DEPENDENT_LAUNCH, FOLD, PIPELINE_STAGES, SPLIT_K, DependentLaunch
from tvm_sparse.scheduling.cuda.cost_model import GpuKernel
from tvm_sparse.scheduling.cuda.npq_tiles import RunPlan, lengths, run_kernel, run_plan
from tvm_sparse.scheduling.cuda.occupancy import ACCUMULATORS, DEPTHS, folded_space
from tvm_sparse.scheduling.cuda.spatial_tiles import Fold, stage_input
from tvm_sparse.scheduling.space import Space, divisors, sample
from tvm_sparse.target.gpu import has_clusters

# Parts of the input channels, largest first: sizes of clusters that every GPU with clusters runs; how many are offered.
SPLITS, OFFERED = (8, 4, 2), 2
# Pixels of all images together from which on there are enough thread blocks without sharing.
MAX_PIXELS = 4096
# About how many threads a block has.
THREADS = 224
# Weights that a part has of each filter, zeros included, at least: with fewer, joining the parts takes longest.
MIN_WEIGHTS = 32
# Estimates are off by a fifth: a space is offered where its own is at most this much longer than the best other one.
WORTH = 1.2


def split_spaces(name: str, spec: ConvSpec, folding: Fold, target: Target, best_us: float) -> list[Space]:
    """Spaces of a small map; none where they are not worth it, or where `target` has no clusters.

    `best_us` is the estimate of the best kernel without parts.
    """
    sizes = [each for each in SPLITS if spec.weight_shape[1] // each * spec.r * spec.s >= MIN_WEIGHTS]
    runs = sorted(lengths(spec), key=lambda each: abs(each.length - THREADS))
    if not has_clusters(target) or spec.n * spec.out_h * spec.out_w > MAX_PIXELS or not runs:
        return []
    found = (split_space(name, spec, run_plan(spec, runs[0]), parts, folding) for parts in sizes)
    offered = islice((each for each in found if each is not None), OFFERED)
    return [each for each in offered if each.estimate_us is not None and each.estimate_us <= WORTH * best_us]


def split_space(name: str, spec: ConvSpec, plan: RunPlan, parts: int, folding: Fold) -> Space | None:
    """The space of one number of parts and one length of runs, or None where it does not fit."""
    filters = [each for each in divisors(spec.k // spec.groups, ACCUMULATORS) if each % parts == 0]
    channels = divisors(spec.weight_shape[1] // parts, folding.shared_limit // (4 * plan.channel))
    if spec.weight_shape[1] % parts or not filters or not channels:
        return None
    # Blocks of a cluster start together: there is no telling where these find room.
    releases = [each for each in folding.releases if each != DependentLaunch.AT_ONCE]
    candidates = (filters, channels, DEPTHS, [1, 2, 3, 4], releases)

    def kernel(values: Sequence[int]) -> GpuKernel:
        *sizes, release = values
        return run_kernel(spec, plan, folding, sizes, parts=parts, release=release)

    def scheduler(values: tuple[int, ...]) -> Callable[[Schedule], None]:
        return lambda sch: _schedule(sch, plan, parts, list(zip(candidates, values, strict=True)))

    func, variant = conv2d_split(spec, plan.runs, parts), f"split{parts}-run{plan.runs.length}"
    return folded_space(name, variant, func, candidates, kernel, scheduler, folding.shared_limit)


def _schedule(sch: Schedule, plan: RunPlan, parts: int, choices: list[tuple[list[int], int]]) -> None:
    conv, pack, partial, total, out = (sch.get_sblock(each) for each in ("conv", "pack", "partial", "total", "out"))
    sch.set_scope(conv, 0, "local")
    sch.set_scope(total, 0, "local")
    per_thread, per_chunk, depth, blocks, release = (sample(sch, *choice) for choice in choices)
    part, run, k, pixel, c, r, s = sch.get_loops(conv)
    k_outer, k_inner = sch.split(k, [None, per_thread])
    c_outer, c_inner = sch.split(c, [None, per_chunk])
    sch.reorder(run, k_outer, part, pixel, c_outer, c_inner, r, s, k_inner)
    _bind(sch, [run, k_outer, part, pixel])
    sch.reverse_compute_at(partial, pixel, preserve_unit_loops=True)
    stage_input(sch, pack, c_outer, plan.row_stride)
    sch.annotate(c_inner, FOLD, blocks)
    sch.annotate(c_outer, PIPELINE_STAGES, depth)
    sch.annotate(c_outer, DEPENDENT_LAUNCH, release)

    run, k, pixel = sch.get_loops(out)
    k_outer, rest = sch.split(k, [None, per_thread])
    k_part, k_share = sch.split(rest, [parts, None])
    sch.reorder(run, k_outer, k_part, pixel, k_share)
    _bind(sch, [run, k_outer, k_part, pixel])
    sch.compute_at(total, pixel, preserve_unit_loops=True)
    sch.annotate(sch.get_loops(total)[-2], SPLIT_K, parts)
    sch.unroll(k_share)
    # Last: once a reduction is split in two, loops around it can no longer be bound.
    init = sch.decompose_reduction(conv, c_outer)
    sch.unroll(sch.get_loops(init)[-1])
    sch.unroll(sch.get_loops(partial)[-2])


def _bind(sch: Schedule, loops: list) -> None:
    for loop, axis in zip(loops, ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x"), strict=True):
        sch.bind(loop, axis)
