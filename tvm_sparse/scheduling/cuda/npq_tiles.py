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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d_npq import Runs, conv2d_runs
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import AT_EXIT, FOLD, ORDER, RELEASE, RING, STRAIGHT, Order
from tvm_sparse.scheduling.cuda.cost_model import GpuKernel
from tvm_sparse.scheduling.cuda.occupancy import ACCUMULATORS, DEPTHS, FoldedCudaSpace
from tvm_sparse.scheduling.cuda.spatial_tiles import Fold, stage_input
from tvm_sparse.scheduling.cuda.tile_plan import Structure
from tvm_sparse.scheduling.space import divisors

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
    order: int = STRAIGHT,
    parts: int = 1,
    release: int = AT_EXIT,
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


class NpqDecisions(NamedTuple):
    """Decisions of folded kernels with NPQ tiles, or their candidates."""

    filters: Any
    channels: Any
    pipeline_stages: Any
    order: Any
    blocks_per_sm: Any
    dependent_launch: Any


class NpqSpace(FoldedCudaSpace):
    """The folded space of NPQ or warp-row tiles of one size."""

    def __init__(self, name: str, spec: ConvSpec, plan: RunPlan, folding: Fold):
        self.spec, self.plan, self.folding = spec, plan, folding
        candidates = NpqDecisions(
            divisors(spec.k // spec.groups, ACCUMULATORS),
            divisors(spec.weight_shape[1], folding.shared_limit // (4 * plan.channel)),
            DEPTHS,
            list(Order),
            [1, 2, 3, 4],
            list(folding.launches),
        )
        func = conv2d_runs(spec, plan.runs)
        super().__init__(name, plan.runs.variant, func, candidates, folding.shared_limit)

    def kernel(self, decisions: NpqDecisions) -> GpuKernel:
        """See `FoldedCudaSpace`."""
        filters, channels, depth, order, resident, release = decisions
        sizes = (filters, channels, depth, resident)
        return run_kernel(self.spec, self.plan, self.folding, sizes, order=order, release=release)

    def schedule_with(self, sch: Schedule, decisions: NpqDecisions) -> None:
        """See `FoldedCudaSpace`."""
        conv, pack, out = sch.get_sblock("conv"), sch.get_sblock("pack"), sch.get_sblock("out")
        sch.set_scope(conv, 0, "local")
        per_thread, per_chunk, depth, order, blocks, launch = decisions
        run, k, pixel, c, r, s = sch.get_loops(conv)
        k_outer, k_inner = sch.split(k, [None, per_thread])
        c_outer, c_inner = sch.split(c, [None, per_chunk])
        sch.reorder(run, k_outer, pixel, c_outer, c_inner, r, s, k_inner)
        for loop, axis in ((run, "blockIdx.x"), (k_outer, "blockIdx.y"), (pixel, "threadIdx.x")):
            sch.bind(loop, axis)
        sch.reverse_compute_at(out, pixel, preserve_unit_loops=True)
        stage_input(sch, pack, c_outer, self.plan.row_stride)
        sch.annotate(c_inner, FOLD, blocks)
        sch.annotate(c_outer, RING, depth)
        sch.annotate(c_outer, ORDER, order)
        sch.annotate(c_outer, RELEASE, launch)
        # Last: once a reduction is split in two, loops around it can no longer be bound.
        init = sch.decompose_reduction(conv, c_outer)
        for loop in [sch.get_loops(init)[-1], *sch.get_loops(out)[-2:]]:
            sch.unroll(loop)
