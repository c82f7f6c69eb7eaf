"""The structure that folded and dense CUDA kernels share: a block of threads on one tile of the output.

Outermost first::

    blockIdx.x over images, tiles of columns and tiles of rows; blockIdx.y over tiles of `filters` output channels
      threadIdx.z, y, x over images, rows and columns of the tile; a thread has `pixels` rows one below the other, and
      `beside` columns side by side
        registers = 0
        for each chunk of `channels` input channels
          copy the chunk's input tile, zeros for padding included, to shared memory
          multiply-adds, straight-line where folded
        store with bias, residual and ReLU

In mode "ring" copies run ahead of the arithmetic and the chunks are straight-line code (`ring`), in mode "async" they
run two chunks ahead in a loop (``cp.async``, three buffers), in mode "plain" they take turns; in mode "direct" nothing
is copied, for kernels so large that not one channel fits. blockIdx.y varies slowest, so that blocks that run together
execute the same code. Tiles of columns are the fastest where the structure says "across": 1.5% less time for operator 9
at batch 64, but 4 to 11% more at batch 1. The distance of rows in shared memory is the one with the fewest bank
conflicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from tvm_sparse.conv.conv2d_tiles import conv2d_tiles
from tvm_sparse.conv.sparsity import SparsityPattern
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
from tvm_sparse.scheduling.cuda.occupancy import DEPTHS, folded_space
from tvm_sparse.scheduling.cuda.tile_plan import BUFFERS, Choice, Plan, torn
from tvm_sparse.scheduling.space import Space, sample, weight_itself
from tvm_sparse.target.gpu import SHARED_BYTES, overlaps, shared_memory_bytes


@dataclass(frozen=True)
class Fold:
    """What a folded space knows beyond its plan: the weight's pattern, and what the GPU allows.

    That is the shared memory of a multiprocessor, and when the next kernel may start (`overlap`).
    """

    pattern: SparsityPattern
    shared_limit: int
    releases: tuple[int, ...] = (DependentLaunch.AT_EXIT,)

    @classmethod
    def on(cls, target: Target, pattern: SparsityPattern) -> Fold:
        """What `target` allows."""
        shared_bytes = shared_memory_bytes(target)
        can_spread = overlaps(target) and shared_bytes >= SHARED_BYTES
        return cls(pattern, shared_bytes, tuple(DependentLaunch) if can_spread else (DependentLaunch.AT_EXIT,))


def tile_space(name: str, spec: ConvSpec, plan: Plan) -> Space:
    """The space of one plan with the weight (K, C / groups, R, S) as an argument."""
    return Space(
        schedule=name,
        variant=plan.structure.variant,
        func=conv2d_tiles(spec, plan.structure.tiles),
        apply=lambda sch: _schedule(sch, plan, spec, [plan.filters, plan.rows, plan.images, plan.channels]),
        fold=False,
        constants=weight_itself,
    )


def plain_tile_space(name: str, spec: ConvSpec, plan: Plan) -> Space:
    """The folded space of one plan whose mode is "plain"."""
    choices = [plan.filters, plan.rows, plan.images, plan.channels, plan.blocks]
    return Space(
        schedule=name,
        variant=plan.structure.variant,
        func=conv2d_tiles(spec, plan.structure.tiles),
        apply=lambda sch: _schedule(sch, plan, spec, choices),
    )


def folded_tile_space(name: str, spec: ConvSpec, plan: Plan, folding: Fold) -> Space | None:
    """The folded space of one plan, whose mode is "ring"; None where no decisions fit."""
    decisions = (plan.filters, plan.rows, plan.images, plan.channels)
    candidates = (
        *(each.candidates for each in decisions),
        DEPTHS,
        list(map(int, Order)),
        [1, 2, 3, 4],
        list(folding.releases),
    )

    def kernel(values: Sequence[int]) -> GpuKernel:
        return _kernel(spec, plan, folding, values)

    def scheduler(values: tuple[int, ...]) -> Callable[[Schedule], None]:
        choices = [Choice(*each) for each in zip(candidates, values, strict=True)]
        return lambda sch: _schedule(sch, plan, spec, choices)

    func, variant = conv2d_tiles(spec, plan.structure.tiles), plan.structure.variant
    return folded_space(name, variant, func, candidates, kernel, scheduler, folding.shared_limit)


def _schedule(sch: Schedule, plan: Plan, spec: ConvSpec, choices: list[Choice]) -> None:
    structure = plan.structure
    conv, pack, out = sch.get_sblock("conv"), sch.get_sblock("pack"), sch.get_sblock("out")
    sch.set_scope(conv, 0, "local")
    filters, rows, images, channels, *folded = (sample(sch, *choice) for choice in choices)
    n, k, y, x, c, r, s = sch.get_loops(conv)
    n_outer, n_inner = sch.split(n, [None, images])
    k_outer, k_inner = sch.split(k, [None, filters])
    y_outer, y_thread, y_inner = sch.split(y, [None, rows, structure.pixels])
    tile, x = sch.split(x, [None, structure.tiles.columns])
    x, *beside = sch.split(x, [None, structure.beside]) if structure.beside > 1 else [x]
    c_outer, c_inner = sch.split(c, [None, channels])
    order = [n_outer, y_outer, tile] if structure.across else [n_outer, tile, y_outer]
    sch.reorder(*order, k_outer, n_inner, y_thread, x, c_outer, c_inner, r, s, k_inner, y_inner, *beside)
    sch.bind(sch.fuse(*order), "blockIdx.x")
    sch.bind(k_outer, "blockIdx.y")
    _bind_threads(sch, [n_inner, y_thread, x])
    sch.reverse_compute_at(out, x, preserve_unit_loops=True)

    threads = [images, rows, structure.columns]
    if structure.mode == "direct":
        sch.compute_inline(pack)
    else:
        loops = stage_input(sch, pack, c_outer, structure.row_stride(spec))
        if structure.mode != "ring":
            _, *bound = sch.split(sch.fuse(*loops), [None, *threads])
            _bind_threads(sch, bound)
    if structure.stages_weights:
        _stage_weights(sch, conv, c_outer, threads, spec.r * spec.s)
    if folded:
        annotations = (PIPELINE_STAGES, K_TILE_ORDER, FOLD, DEPENDENT_LAUNCH) if structure.mode == "ring" else (FOLD,)
        for annotation, value in zip(annotations, folded, strict=True):
            sch.annotate(c_inner if annotation == FOLD else c_outer, annotation, value)
    else:
        sch.unroll(k_inner)
        sch.unroll(y_inner)
    if structure.mode == "async":
        copies = [0, 0] if structure.stages_weights else [0]
        sch.annotate(c_outer, "software_pipeline_stage", [*copies, BUFFERS - 1])
        sch.annotate(c_outer, "software_pipeline_order", list(range(len(copies) + 1)))
        sch.annotate(c_outer, "software_pipeline_async_stages", [0])
    # Last: once a reduction is split in two, loops around it can no longer be bound.
    init = sch.decompose_reduction(conv, c_outer)
    for loop in [*sch.get_loops(init)[-2 - len(beside) :], *sch.get_loops(out)[-4:]]:
        sch.unroll(loop)


def _kernel(spec: ConvSpec, plan: Plan, folding: Fold, values: Sequence[int]) -> GpuKernel:
    """What decisions make of the plan."""
    structure = plan.structure
    filters, rows, images, channels, depth, order, resident, release = values
    height = structure.thread_rows // rows
    return GpuKernel.of(
        spec,
        folding.pattern,
        threads=rows * images * structure.columns,
        filters=filters,
        pixels=structure.pixels,
        beside=structure.beside,
        blocks=spec.n // images * structure.tiles.count(spec) * height,
        channels=channels,
        chunk_bytes=structure.shared_bytes(spec, rows, images, channels, 1),
        nest=structure.nest(spec, rows, images, channels),
        lanes=structure.tiles.lanes(spec),
        depth=depth,
        resident=resident,
        order=order,
        release=release,
        torn=torn(spec, structure),
    )


def _bind_threads(sch: Schedule, loops: list[LoopRV]) -> None:
    for loop, axis in zip(loops, ("threadIdx.z", "threadIdx.y", "threadIdx.x")[-len(loops) :], strict=True):
        sch.bind(loop, axis)


def stage_input(sch: Schedule, pack: SBlockRV, chunk: LoopRV, row_stride: int) -> list[LoopRV]:
    """Copy a chunk of the input to shared memory, as many floats at once as are aligned; the loops of the copies.

    The last axes of `pack` are rows, copies and the lanes of a copy. Unbound, the loops are laid over the threads as
    rings are made (`tvm_sparse.spread`).
    """
    sch.set_scope(pack, 0, "shared.dyn")
    sch.compute_at(pack, chunk, preserve_unit_loops=True)
    outside = len(sch.get_loops(pack)) - len(sch.get(pack).iter_vars)
    *loops, lane = sch.get_loops(pack)[outside:]
    sch.vectorize(lane)
    sch.storage_align(pack, 0, axis=-3, factor=32, offset=row_stride)
    return loops


def _stage_weights(sch: Schedule, conv: SBlockRV, chunk: LoopRV, threads: list, taps: int) -> None:
    """Let all threads copy a chunk of the weight to shared memory, where output channels lie side by side."""
    # Dynamic like the input: TVM asks for more than 48 KiB by the dynamic part alone, and a static part adds to it.
    weight = sch.cache_read(conv, 1, "shared.dyn")
    sch.transform_layout(weight, ("write", 0), lambda k, c, r, s: (c, r, s, k))
    sch.compute_at(weight, chunk, preserve_unit_loops=True)
    if taps == 1:
        # TVM finds no place in shared memory for a buffer of 4 bytes beside others.
        sch.storage_align(weight, 0, axis=-2, factor=2, offset=0)
    _, *bound = sch.split(sch.fuse(*sch.get_loops(weight)[-4:]), [None, *threads])
    _bind_threads(sch, bound)
