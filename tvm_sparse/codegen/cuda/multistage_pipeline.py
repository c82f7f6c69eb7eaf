"""K-tile loops as multistage pipelines of asynchronous copies with straight-line code.

A kernel that is staged k-tile by k-tile has, late in lowering, one copy of the weights' code for each k-tile and each
tile of output channels. Chosen inside the k-tile loop, that code is entered by a branch a k-tile, and instruction
fetch, which runs ahead only along straight lines, starts anew each time. The pass MultistagePipeline rewrites the loop
that the annotation `PIPELINE_STAGES` marks:

* the tile, and in split-K kernels the share of the input channels (`cluster_reduction`), is chosen once, and its
  k-tiles follow each other without a branch; the first copies, the same for all tiles, come before that; in large
  kernels all of it lies behind the choice, a region that can be compiled by itself (`separate_compilation`);
* copies run ahead of the arithmetic by as many k-tiles as there are buffers but one, with one barrier a k-tile: behind
  it all threads have left the buffer that is filled next. (TVM's software pipeline has two.)

`annotations.Order` says in which order k-tiles come, and `annotations.DependentLaunch` when the next kernel may start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import AllocBuffer, AttrStmt, Bind, For, IfThenElse, IntImm, SeqStmt, Stmt, Var

from tvm_sparse.codegen.cuda import jump_table, separate_compilation
from tvm_sparse.codegen.cuda.async_copies import KTileCopies
from tvm_sparse.codegen.cuda.cluster_reduction import COMMON_END
from tvm_sparse.codegen.cuda.dependent_launch import launch_dependents
from tvm_sparse.codegen.cuda.k_tile import KTile
from tvm_sparse.codegen.tir.branch_tree import specialized
from tvm_sparse.codegen.tir.thread_axes import SPLIT_K_AXIS, Nest
from tvm_sparse.codegen.tir.tir_builder import (
    Counter,
    annotated_loops,
    committed,
    function_name,
    function_pass,
    integer,
    is_barrier,
    nothing,
    sequence,
    statements_of,
    substituted,
    waited,
    with_body,
)
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling import code_size
from tvm_sparse.scheduling.annotations import (
    DEPENDENT_LAUNCH,
    K_TILE_ORDER,
    PIPELINE_STAGES,
    WEIGHT_ATTRIBUTE,
    DependentLaunch,
    Order,
)
from tvm_sparse.target.gpu import MULTIPROCESSORS, spread_bytes

# The thread axes that select code: over tiles of output channels, and over shares of the input channels.
SELECTING = ("blockIdx.y", SPLIT_K_AXIS)
# The axes of a block's threads, the fastest last.
THREADS = ("threadIdx.z", "threadIdx.y", "threadIdx.x")


def multistage_pipeline_pass() -> tvm.transform.Pass:
    """The pass MultistagePipeline; functions without an annotated loop are left alone.

    It runs behind ``ThreadSync``, whose barriers it replaces.
    """

    def pipeline(func: tirx.PrimFunc) -> tirx.PrimFunc:
        loops = annotated_loops(func.body, PIPELINE_STAGES)
        if len(loops) > 1:
            raise BuildError(
                function_name(func), "more than one k-tile loop", len(loops), "1", hint="report this schedule"
            )
        return with_body(func, _pipelined(_Kernel.of(func, loops[0]))) if loops else func

    return function_pass("MultistagePipeline", pipeline)


@dataclass(frozen=True)
class _Kernel:
    """Facts about one kernel and its k-tile loop.

    `stages` buffers in shared memory hold k-tiles, and copies run `ahead` k-tiles ahead of the arithmetic. `blocks` are
    its thread blocks in all. `is_large`: each tile's code is a region.
    """

    name: str
    nest: Nest
    loop: For
    k_tile: KTile
    stages: int
    ahead: int
    order: Order
    launch: DependentLaunch
    blocks: int
    is_large: bool

    @classmethod
    def of(cls, func: tirx.PrimFunc, loop: For) -> _Kernel:
        """The kernel of a function around its k-tile loop."""
        name, nest, marks, count = function_name(func), Nest.of(func.body), loop.annotations, int(loop.extent)
        # A split-K kernel's ranks count twice, as blocks and as a cluster: so were its decisions measured.
        blocks = math.prod(extent for tag, extent in nest.extents().items() if tag not in THREADS)
        stages = int(marks[PIPELINE_STAGES])
        # Where there are fewer k-tiles than buffers, each has its own: all are copied at once, and none is left whose
        # copy could come in another order.
        all_at_once = count < stages
        return cls(
            name=name,
            nest=nest,
            loop=loop,
            k_tile=_k_tile(name, nest, loop, is_alone=blocks <= MULTIPROCESSORS),
            stages=min(stages, count),
            ahead=count if all_at_once else stages - 1,
            order=Order.STRAIGHT if all_at_once else Order(int(marks.get(K_TILE_ORDER, Order.STRAIGHT))),
            launch=DependentLaunch(int(marks.get(DEPENDENT_LAUNCH, DependentLaunch.AT_EXIT))),
            blocks=blocks,
            is_large=_non_zeros(func) >= code_size.REGION_NON_ZEROS,
        )


def _k_tile(name: str, nest: Nest, loop: For, *, is_alone: bool) -> KTile:
    *copies, compute = (each for each in statements_of(loop.body) if not is_barrier(each))
    if not copies:
        raise BuildError(name, "a k-tile is not copied before it is used", hint="report this schedule")
    extents = nest.extents()
    threads = [(nest.var(tag), extents[tag]) for tag in THREADS if tag in extents]
    copied = KTileCopies(name, sequence(copies), loop.loop_var, int(loop.extent), threads)
    (length,) = copied.buffer.ty.shape
    return KTile(loop.loop_var, int(loop.extent), copied, compute, int(length), is_alone)


def _non_zeros(func: tirx.PrimFunc) -> int:
    """Of the weight that is folded into the function; none where it is an argument."""
    return int(np.count_nonzero(func.attrs[WEIGHT_ATTRIBUTE].numpy())) if WEIGHT_ATTRIBUTE in func.attrs else 0


def _pipelined(kernel: _Kernel) -> Stmt:
    """The kernel with its k-tile loop as a pipeline, and as many buffers as that has stages."""
    buffer, length = kernel.k_tile.copies.buffer, kernel.k_tile.length * kernel.stages
    if kernel.launch == DependentLaunch.AT_ONCE:
        length = max(length, spread_bytes(kernel.blocks) // 4)
    grown = tirx.decl_buffer((length,), str(buffer.ty.dtype), buffer.name, scope=buffer.ty.storage_scope)

    def allocation(node: AllocBuffer) -> Stmt:
        return AllocBuffer(grown) if node.buffer.same_as(buffer) else node

    body = replace(kernel.nest, body=_thread(kernel)).stmt()
    return substituted(tvm_ffi.structural_map(body, (AllocBuffer, allocation), order="post"), buffer, grown)


def _thread(kernel: _Kernel) -> list[Stmt]:
    """What a thread does: before it knows its tile, for its tile, and after that."""
    statements, after = list(kernel.nest.body), []
    if isinstance(statements[-1], AttrStmt) and statements[-1].attr_key == COMMON_END:
        after = [statements.pop().body]
    at = next((index for index, each in enumerate(statements) if each.same_as(kernel.loop)), None)
    if at is None:
        raise BuildError(kernel.name, "the k-tile loop is not among a thread's statements", hint="report this schedule")
    prologue, pipeline = _STATEMENTS[kernel.order](kernel)
    if kernel.launch == DependentLaunch.AT_ONCE:
        prologue = [launch_dependents(), *prologue]
    tile = sequence([*statements[:at], pipeline, *statements[at + 1 :]])
    selecting = {kernel.nest.var(tag): extent for tag, extent in kernel.nest.extents().items() if tag in SELECTING}
    if kernel.is_large:
        return [specialized(sequence([*prologue, tile, *after]), selecting, separate_compilation.region)]
    return [*prologue, specialized(tile, selecting), *after]


def _straight(kernel: _Kernel) -> tuple[list[Stmt], Stmt]:
    """The first copies, and the k-tiles from the first to the last."""
    k_tile, ahead = kernel.k_tile, kernel.ahead

    def slot(index: int) -> IntImm:
        return integer(index % kernel.stages * k_tile.length)

    prologue = [*k_tile.copies.prologue, *(k_tile.copied(integer(i), slot(i)) for i in range(ahead))]
    steps: list[Stmt] = []
    for index in range(k_tile.count):
        later, left = index + ahead, k_tile.count - index
        copies = [k_tile.copied(integer(later), slot(later))] if later < k_tile.count else []
        first = [launch_dependents()] if kernel.launch == DependentLaunch.LAST_K_TILE and left == 1 else []
        step = k_tile.step(integer(index), slot(index), copies, first)
        steps.append(waited(min(ahead, left) - 1, SeqStmt(step)))
    return prologue, sequence(steps)


def _rotated(kernel: _Kernel) -> tuple[list[Stmt], Stmt]:
    """The first copies, and two rounds over the k-tiles: from the block's first one to the end, then up to it.

    A round enters the k-tiles' straight line by a jump table: each k-tile passed over with a branch of its own costs a
    miss of the instruction cache, a microsecond a block in all.

    What is copied next and where to, where the next k-tile is read, and how many are left is counted in registers.
    Computed from a k-tile's number it would not depend on the round, so compilers would compute it for all k-tiles
    before the loop: that fills all registers, and no shared load is issued ahead of its use any more.
    """
    k_tile, ahead, count = kernel.k_tile, kernel.ahead, kernel.k_tile.count
    block = kernel.nest.var("blockIdx.x")
    first, round_ = Var("first", block.ty), Var("turn", block.ty)
    fill, read, left, later, entry = counters = [Counter(name) for name in ("fill", "read", "left", "later", "entry")]
    prologue: list[Stmt] = [AllocBuffer(each.buffer) for each in counters]
    prologue += [*k_tile.copies.prologue, Bind(first, tirx.truncmod(block, integer(count)))]
    for i in range(ahead):
        prologue.append(k_tile.copied(tirx.truncmod(first + i, integer(count)), integer(i * k_tile.length)))
    prologue += [fill.set(integer(ahead * k_tile.length)), read.set(integer(0)), left.set(integer(count))]
    prologue += [later.set(tirx.truncmod(first + ahead, integer(count))), entry.set(first)]
    end = integer(k_tile.length * (kernel.stages - 1))
    line: list[Stmt] = []
    for index in range(count):
        copy = k_tile.copied(later.value, fill.value)
        # Where nothing is left to copy an empty group is committed, so that the count of groups in flight stays.
        more = SeqStmt([copy, fill.next(k_tile.length, end), later.next(1, integer(count - 1))])
        copies = IfThenElse(left.value > ahead, more, committed(nothing()))
        step = [*k_tile.step(integer(index), read.value, [copies]), read.next(k_tile.length, end)]
        body = waited(ahead - 1, SeqStmt([*step, left.set(left.value - 1)]))
        line += [jump_table.case(index), body, jump_table.leave(left.value < 1)]
    # No k-tile is left where the first is number 0: its first round is whole.
    entered = jump_table.enter(tirx.Select(left.value > 0, entry.value, integer(count)))
    steps = SeqStmt([entered, *line, jump_table.end(), entry.set(integer(0))])
    rounds = For(round_, integer(0), integer(2), tirx.ForKind.SERIAL, steps)
    # Which k-tile is a block's last is known when it runs.
    is_released = kernel.launch == DependentLaunch.LAST_K_TILE
    return prologue, SeqStmt([rounds, launch_dependents()]) if is_released else rounds


# What a kernel does in each order: (before a thread knows its tile of output channels, for its tile).
_STATEMENTS = {Order.STRAIGHT: _straight, Order.ROTATED: _rotated}
