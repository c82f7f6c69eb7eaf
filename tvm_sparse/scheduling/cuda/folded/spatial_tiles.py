"""The structure that folded and dense CUDA kernels share: a block of threads on one tile of the output.

Outermost first::

    blockIdx.x over images, tiles of columns and tiles of rows; blockIdx.y over tiles of `filters` output channels
      threadIdx.z, y, x over images, rows and columns of the tile; a thread has `pixels` rows one below the other, and
      `beside` columns side by side
        registers = 0
        for each k-tile of `channels` input channels
          copy the k-tile's input, zeros for padding included, to shared memory
          multiply-adds, straight-line where folded
        store with bias, residual and ReLU

In mode "multistage" copies run ahead of the arithmetic and the k-tiles are straight-line code (`multistage_pipeline`),
in mode "async" they run two k-tiles ahead in a loop (``cp.async``, three buffers), in mode "single" they take turns; in
mode "direct" nothing is copied, for kernels so large that not one channel fits. blockIdx.y varies slowest, so that
blocks that run together execute the same code. Tiles of columns are the fastest where the structure says "across": 1.5%
less time for operator 9 at batch 64, but 4 to 11% more at batch 1. The distance of rows in shared memory is the one
with the fewest bank conflicts.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_sparse.conv.conv2d_tiles import conv2d_tiles
from tvm_sparse.conv.pooled import COLUMNS as POOLED_COLUMNS
from tvm_sparse.conv.reference import WINDOW
from tvm_sparse.scheduling.annotations import FOLD, HALF_SUMS
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KernelCounts, KTile, OutputTile, Pipeline, kernel_counts
from tvm_sparse.scheduling.cuda.folded.occupancy import Fold, FoldedCudaSpace
from tvm_sparse.scheduling.cuda.folded.tile_plan import BUFFERS, MAX_WEIGHTS, Plan, Structure, plan, torn
from tvm_sparse.scheduling.decision_kinds import OneOf, Split
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, sampled

# Elements of the longest vectors that TVM writes arithmetic on, as padding is where copies are not asynchronous.
VECTOR = 4
# Code of a tile at most where outputs are pooled, by default: 128->128 3x3 on 112x112 took 923 us with 32 filters in
# 88 KB and 1667 with 64 in 140 KB.
POOLED_CODE_BYTES = 100 * 1024
# What is decided about a tile in every mode: fields of a `Plan`.
TILE = ("filters", "rows", "images", "channels")


class TileSpace(HandMadeSpace):
    """The space of one plan without our pipeline: dense with the weight as an argument, or folded in mode "single"."""

    def __init__(self, name: str, plan: Plan, fold: bool):
        structure = plan.structure
        super().__init__(name, structure.variant, partial(conv2d_tiles, structure.tiles), fold)
        self.plan = plan
        self.candidates = {name: getattr(plan, name) for name in TILE}
        if fold:
            self.candidates["blocks_per_sm"] = plan.blocks

    def apply(self, sch: Schedule, choose: Choose) -> None:
        decided = [choose.one_of(name, *each) for name, each in self.candidates.items()]
        tile, blocks = decided[: len(TILE)], decided[len(TILE) :]
        _schedule(sch, self.plan.structure, tile, {FOLD: blocks[0]} if blocks else {})

    @cached_property
    def choices(self) -> dict[str, OneOf | Split]:
        return {name: OneOf(tuple(sorted(set(values)))) for name, (values, _) in self.candidates.items()}

    def obstacle_of(self, sch: Schedule) -> str:
        filters, _, _, channels = sampled(sch)[: len(TILE)]
        needed = self.plan.structure.weight_bytes(filters, channels)
        return f"weights need {needed} bytes of shared memory, at most {MAX_WEIGHTS}" if needed > MAX_WEIGHTS else ""


class FoldedTileSpace(FoldedCudaSpace):
    """The folded space of one plan, whose mode is "multistage"."""

    def __init__(self, name: str, plan: Plan, folding: Fold):
        self.structure = plan.structure
        candidates = {name: getattr(plan, name).candidates for name in TILE} | folding.pipelines
        make_func = partial(conv2d_tiles, self.structure.tiles, self.structure.pools)
        super().__init__(name, self.structure.variant, make_func, candidates, folding)
        if self.structure.pools:
            self.most_code_bytes = POOLED_CODE_BYTES

    @classmethod
    def of(cls, name: str, structure: Structure, folding: Fold) -> "FoldedTileSpace | None":
        """The space of a structure, or None where a block of it does not fit into shared memory."""
        decisions = plan(structure, folding.gpu, 0)
        return None if decisions is None else cls(name, decisions, folding)

    def schedule_with(self, sch: Schedule, decisions: Sequence[Any]) -> None:
        tile, pipeline = self.parted(decisions)
        _schedule(sch, self.structure, tile, pipeline.marks | ({HALF_SUMS: 1} if self.structure.halves else {}))

    def tile_counts(self, tile: Sequence[Any], pipeline: Pipeline) -> KernelCounts:
        structure = self.structure
        filters, rows, images, channels = tile
        output = OutputTile(
            threads=rows * images * structure.columns,
            filters=filters,
            pixels=structure.pixels,
            blocks=structure.tiles.count // images * (structure.thread_rows // rows),
            beside=structure.beside,
            torn=torn(structure, self.gpu),
            halves=structure.halves,
        )
        k_tile = KTile(
            channels,
            shared_bytes=structure.shared_bytes(rows, images, channels, 1),
            nest=structure.nest(rows, images, channels),
            lanes=structure.tiles.lanes,
        )
        return kernel_counts(structure.tiles.spec, self.folding.pattern, output, k_tile, pipeline)


def _schedule(sch: Schedule, structure: Structure, tile: Sequence[Any], marks: dict[str, Any]) -> None:
    """Schedule with the decisions of `TILE`; `marks` are what `annotated` takes."""
    spec = structure.tiles.spec
    conv, pack, out = sch.get_sblock("conv"), sch.get_sblock("pack"), sch.get_sblock("out")
    sch.set_scope(conv, 0, "local")
    filters, rows, images, channels = tile
    n, k, y, x, c, r, s = sch.get_loops(conv)
    n_outer, n_inner = sch.split(n, [None, images])
    k_outer, k_inner = sch.split(k, [None, filters])
    y_outer, y_thread, y_inner = sch.split(y, [None, rows, structure.pixels])
    across, x = sch.split(x, [None, structure.tiles.columns])
    x, *beside = sch.split(x, [None, structure.beside]) if structure.beside > 1 else [x]
    c_outer, c_inner = sch.split(c, [None, channels])
    order = [n_outer, y_outer, across] if structure.across else [n_outer, across, y_outer]
    thread = [y_thread, x]
    if structure.pools:
        # A warp has two rows.
        pairs = sch.split(y_thread, [None, WINDOW]), sch.split(x, [None, POOLED_COLUMNS])
        thread = [loop for pair in zip(*pairs, strict=True) for loop in pair]
    sch.reorder(*order, k_outer, n_inner, *thread, c_outer, c_inner, r, s, k_inner, y_inner, *beside)
    sch.bind(sch.fuse(*order), "blockIdx.x")
    sch.bind(k_outer, "blockIdx.y")
    if structure.pools:
        thread = [sch.fuse(*thread[:2]), sch.fuse(*thread[2:])]
    _bind_threads(sch, [n_inner, *thread])
    sch.reverse_compute_at(out, thread[-1], preserve_unit_loops=True)

    threads = [images, rows, structure.columns]
    if structure.mode == "direct":
        sch.compute_inline(pack)
    else:
        widest = VECTOR if structure.mode == "single" else structure.tiles.lanes
        loops = stage_input(sch, pack, c_outer, structure.row_stride, widest)
        if structure.mode != "multistage":
            _, *bound = sch.split(sch.fuse(*loops), [None, *threads])
            _bind_threads(sch, bound)
    if structure.stages_weights:
        _stage_weights(sch, conv, c_outer, threads, spec.r * spec.s)
    annotated(sch, c_outer, c_inner, marks)
    if not marks:
        sch.unroll(k_inner)
        sch.unroll(y_inner)
    if structure.mode == "async":
        _copy_ahead(sch, c_outer, copies=2 if structure.stages_weights else 1)
    # Last: once a reduction is split in two, loops around it can no longer be bound.
    init = sch.decompose_reduction(conv, c_outer)
    *stored, column = sch.get_loops(out)[-4:]
    for loop in [*sch.get_loops(init)[-2 - len(beside) :], *stored]:
        sch.unroll(loop)
    if structure.halves:
        sch.vectorize(column)
    else:
        sch.unroll(column)


def annotated(sch: Schedule, k_tile: LoopRV, inside: LoopRV, marks: dict[str, Any]) -> None:
    """Annotate the k-tile loop with `marks`, the loop `inside` it with those of folding among them."""
    for annotation, value in marks.items():
        sch.annotate(inside if annotation in (FOLD, HALF_SUMS) else k_tile, annotation, value)


def _copy_ahead(sch: Schedule, k_tile: Any, copies: int) -> None:
    """Have TVM copy the next k-tile asynchronously while this one is computed."""
    sch.annotate(k_tile, "software_pipeline_stage", [*[0] * copies, BUFFERS - 1])
    sch.annotate(k_tile, "software_pipeline_order", list(range(copies + 1)))
    sch.annotate(k_tile, "software_pipeline_async_stages", [0])


def _bind_threads(sch: Schedule, loops: list[LoopRV]) -> None:
    for loop, axis in zip(loops, ("threadIdx.z", "threadIdx.y", "threadIdx.x")[-len(loops) :], strict=True):
        sch.bind(loop, axis)


def stage_input(
    sch: Schedule, pack: SBlockRV, k_tile: LoopRV, row_stride: int, widest: int | None = None
) -> list[LoopRV]:
    """Copy a k-tile of the input to shared memory, as many elements at once as are aligned; the loops of the copies.

    No more than `widest` at once, which divides a copy.

    The last axes of `pack` are rows, copies and the lanes of a copy. Unbound, the loops are laid over the threads as
    the multistage pipeline is made (`thread_layout`).
    """
    sch.set_scope(pack, 0, "shared.dyn")
    sch.compute_at(pack, k_tile, preserve_unit_loops=True)
    outside = len(sch.get_loops(pack)) - len(sch.get(pack).iter_vars)
    *loops, lane = sch.get_loops(pack)[outside:]
    if widest is not None and int(sch.get(lane).extent) > widest:
        outer, lane = sch.split(lane, [None, widest])
        loops.append(outer)
    sch.vectorize(lane)
    sch.storage_align(pack, 0, axis=-3, factor=32, offset=row_stride)
    return loops


def _stage_weights(sch: Schedule, conv: SBlockRV, k_tile: LoopRV, threads: list, taps: int) -> None:
    """Let all threads copy a k-tile of the weight to shared memory, where output channels lie side by side."""
    # Dynamic like the input: TVM asks for more than 48 KiB by the dynamic part alone, and a static part adds to it.
    weight = sch.cache_read(conv, 1, "shared.dyn")
    sch.transform_layout(weight, ("write", 0), lambda k, c, r, s: (c, r, s, k))
    sch.compute_at(weight, k_tile, preserve_unit_loops=True)
    if taps == 1:
        # TVM finds no place in shared memory for a buffer of 4 bytes beside others.
        sch.storage_align(weight, 0, axis=-2, factor=2, offset=0)
    _, *bound = sch.split(sch.fuse(*sch.get_loops(weight)[-4:]), [None, *threads])
    _bind_threads(sch, bound)
