"""The structure of folded CUDA kernels whose blocks take runs of pixels instead of tiles of rows and columns.

Outermost first::

    blockIdx.x over runs; blockIdx.y over tiles of `filters` output channels
      threadIdx.x over the pixels of the run
        registers = 0
        for each chunk of `channels` input channels, as a ring (`ring`)
          copy the rows that the run needs, zeros for padding included, to shared memory
          straight-line multiply-adds
        store with bias, residual and ReLU

A run's length is chosen so that the runs are a multiple of the multiprocessors, `waves`; see `tvm_sparse.runs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d_npq import Runs, conv2d_runs
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import (
    DEPENDENT_LAUNCH,
    FOLD,
    K_TILE_ORDER,
    PIPELINE_STAGES,
    DependentLaunch,
    Order,
)
from tvm_sparse.scheduling.cuda.cost_model import GpuKernel
from tvm_sparse.scheduling.cuda.occupancy import ACCUMULATORS, DEPTHS, folded_space
from tvm_sparse.scheduling.cuda.spatial_tiles import Fold, stage_input
from tvm_sparse.scheduling.cuda.tile_plan import Structure
from tvm_sparse.scheduling.space import Space, divisors, sample

# Threads of a block that lengths are chosen near.
THREADS = (384, 768, 256, 512, 320, 128)
MAX_LENGTH = 1024
# Multiprocessors of an H100 or H200, in halves: two tiles of output channels share them.
SHARE = 66
# Lengths of many runs are whole warps: otherwise the writes of each warp begin and end amid 32 bytes of DRAM.
WARP = 32
# Beyond this width of maps a run's halo is many more rows than a tile's.
MAX_WIDTH = 128


@dataclass(frozen=True)
class RunPlan:
    """A run: its length; elements of one input channel in shared memory, its rows, and copies of `lanes` a row."""

    runs: Runs
    row_stride: int
    channel: int
    nest: tuple[int, int]
    lanes: int


def lengths(spec: ConvSpec) -> list[Runs]:
    """Runs worth a space, most promising first."""
    pixels = spec.n * spec.out_h * spec.out_w
    if spec.out_w > MAX_WIDTH:
        return []
    found: list[Runs] = []
    for threads in THREADS:
        count = -(-pixels // min(threads, pixels))
        length = -(-pixels // count)
        # Few runs stay as they are: rounded up, blocks of a small batch would have hardly any threads.
        if count * 2 > SHARE:
            length = -(-pixels // (-(-count // SHARE) * SHARE) // WARP) * WARP
        if Runs(length) not in found and length <= MAX_LENGTH:
            found.append(Runs(length))
    return found


def run_plan(spec: ConvSpec, runs: Runs) -> RunPlan:
    """The geometry of runs: rows lie so that a warp that wraps to the next row meets no bank conflict."""
    tiles = runs.whole(spec)
    rows, copies, lanes = runs.rows(spec), runs.copies(spec), tiles.lanes(spec)
    width = copies * lanes
    stride = Structure(tiles, 1, "ring").row_stride(spec) if runs.wraps else width % 32
    row = width + (stride - width) % 32
    return RunPlan(runs, stride, rows * row, (rows, copies), lanes)


def run_kernel(
    spec: ConvSpec,
    plan: RunPlan,
    folding: Fold,
    sizes: Sequence[int],
    order: int = Order.STRAIGHT,
    parts: int = 1,
    release: int = DependentLaunch.AT_EXIT,
) -> GpuKernel:
    """What decisions make of a plan: `sizes` are filters, channels, depth and resident blocks of `GpuKernel.of`."""
    filters, channels, depth, resident = sizes
    return GpuKernel.of(
        spec,
        folding.pattern,
        threads=plan.runs.length,
        filters=filters,
        pixels=1,
        blocks=plan.runs.count(spec),
        channels=channels,
        chunk_bytes=4 * channels * plan.channel,
        nest=(channels, *plan.nest),
        lanes=plan.lanes,
        depth=depth,
        resident=resident,
        order=order,
        parts=parts,
        release=release,
    )


def run_space(name: str, spec: ConvSpec, plan: RunPlan, folding: Fold) -> Space | None:
    """The space of runs of one length, or None where one channel exceeds shared memory."""
    candidates = (
        divisors(spec.k // spec.groups, ACCUMULATORS),
        divisors(spec.weight_shape[1], folding.shared_limit // (4 * plan.channel)),
        DEPTHS,
        list(map(int, Order)),
        [1, 2, 3, 4],
        list(folding.releases),
    )

    def kernel(values: Sequence[int]) -> GpuKernel:
        filters, channels, depth, order, resident, release = values
        return run_kernel(spec, plan, folding, (filters, channels, depth, resident), order=order, release=release)

    def scheduler(values: tuple[int, ...]) -> Callable[[Schedule], None]:
        return lambda sch: _schedule(sch, plan, list(zip(candidates, values, strict=True)))

    func, variant = conv2d_runs(spec, plan.runs), plan.runs.variant
    return folded_space(name, variant, func, candidates, kernel, scheduler, folding.shared_limit)


def _schedule(sch: Schedule, plan: RunPlan, choices: list[tuple[list[int], int]]) -> None:
    conv, pack, out = sch.get_sblock("conv"), sch.get_sblock("pack"), sch.get_sblock("out")
    sch.set_scope(conv, 0, "local")
    per_thread, per_chunk, depth, order, blocks, release = (sample(sch, *choice) for choice in choices)
    run, k, pixel, c, r, s = sch.get_loops(conv)
    k_outer, k_inner = sch.split(k, [None, per_thread])
    c_outer, c_inner = sch.split(c, [None, per_chunk])
    sch.reorder(run, k_outer, pixel, c_outer, c_inner, r, s, k_inner)
    for loop, axis in ((run, "blockIdx.x"), (k_outer, "blockIdx.y"), (pixel, "threadIdx.x")):
        sch.bind(loop, axis)
    sch.reverse_compute_at(out, pixel, preserve_unit_loops=True)
    stage_input(sch, pack, c_outer, plan.row_stride)
    sch.annotate(c_inner, FOLD, blocks)
    sch.annotate(c_outer, PIPELINE_STAGES, depth)
    sch.annotate(c_outer, K_TILE_ORDER, order)
    sch.annotate(c_outer, DEPENDENT_LAUNCH, release)
    # Last: once a reduction is split in two, loops around it can no longer be bound.
    init = sch.decompose_reduction(conv, c_outer)
    for loop in [sch.get_loops(init)[-1], *sch.get_loops(out)[-2:]]:
        sch.unroll(loop)
