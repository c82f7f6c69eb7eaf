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

import math
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.tirx import AllocBuffer, AttrStmt, Bind, For, IfThenElse, IntImm, SeqStmt, Stmt, Var

from tvm_sparse.codegen.cuda import separate_compilation
from tvm_sparse.codegen.cuda.async_copies import KTileCopies
from tvm_sparse.codegen.cuda.cluster_reduction import COMMON_END
from tvm_sparse.codegen.cuda.cp_async import element_bytes
from tvm_sparse.codegen.cuda.dependent_launch import launch_dependents
from tvm_sparse.codegen.cuda.jump_table import jump_table
from tvm_sparse.codegen.cuda.k_tile import KTile
from tvm_sparse.codegen.folding.branch_tree import specialized
from tvm_sparse.codegen.tir.thread_axes import SPLIT_K_AXIS, Nest
from tvm_sparse.codegen.tir.tir_builder import (
    Counter,
    committed,
    function_name,
    integer,
    is_barrier,
    loop_pass,
    nothing,
    sequence,
    statements_of,
    substituted,
    waited,
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
from tvm_sparse.target.gpu import GpuInfo, gpu_info

# The thread axes that select code: over tiles of output channels, and over shares of the input channels.
SELECTING = ("blockIdx.y", SPLIT_K_AXIS)
# The axes of a block's threads, the fastest last.
THREADS = ("threadIdx.z", "threadIdx.y", "threadIdx.x")


@loop_pass("MultistagePipeline", PIPELINE_STAGES)
def multistage_pipeline(func: tirx.PrimFunc, loops: list[For]) -> Stmt:
    """The body, pipelined; behind ``ThreadSync``, whose barriers are replaced."""
    return _pipelined(_Kernel.of(func, loops))


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
    gpu: GpuInfo

    @classmethod
    def of(cls, func: tirx.PrimFunc, loops: list[For]) -> "_Kernel":
        """The kernel of a function with these k-tile loops, of which there may be one."""
        name, nest, loop = function_name(func), Nest.of(func.body), loops[0]
        if len(loops) > 1:
            raise BuildError(name, "more than one k-tile loop", len(loops), "1", "report this schedule")
        marks, count, gpu = loop.annotations, int(loop.extent), gpu_info(func.attrs["target"])
        # A split-K kernel's ranks count twice, as blocks and as a cluster: so were its decisions measured.
        blocks = math.prod(extent for tag, extent in nest.extents().items() if tag not in THREADS)
        stages = int(marks[PIPELINE_STAGES])
        non_zeros = np.count_nonzero(func.attrs[WEIGHT_ATTRIBUTE].numpy()) if WEIGHT_ATTRIBUTE in func.attrs else 0
        # Where there are fewer k-tiles than buffers, each has its own: all are copied at once, and none is left whose
        # copy could come in another order.
        all_at_once = count < stages
        return cls(
            name=name,
            nest=nest,
            loop=loop,
            k_tile=_k_tile(name, nest, loop, is_alone=blocks <= gpu.multiprocessors),
            stages=min(stages, count),
            ahead=count if all_at_once else stages - 1,
            order=Order.STRAIGHT if all_at_once else Order(int(marks.get(K_TILE_ORDER, Order.STRAIGHT))),
            launch=DependentLaunch(int(marks.get(DEPENDENT_LAUNCH, DependentLaunch.AT_EXIT))),
            blocks=blocks,
            is_large=bool(non_zeros >= code_size.REGION_NON_ZEROS),
            gpu=gpu,
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


def _pipelined(kernel: _Kernel) -> Stmt:
    """The kernel with its k-tile loop as a pipeline, and as many buffers as that has stages."""
    buffer, length = kernel.k_tile.copies.buffer, kernel.k_tile.length * kernel.stages
    if kernel.launch == DependentLaunch.AT_ONCE:
        length = max(length, kernel.gpu.spread_bytes(kernel.blocks) // element_bytes(buffer))
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
    """
    k_tile, ahead, count = kernel.k_tile, kernel.ahead, kernel.k_tile.count
    block = kernel.nest.var("blockIdx.x")
    first, turn = Var("first", block.ty), Var("turn", block.ty)
    at, entry = _Position(), Counter("entry")
    prologue: list[Stmt] = [AllocBuffer(each.buffer) for each in (at.fill, at.read, at.left, at.later, entry)]
    prologue += [*k_tile.copies.prologue, Bind(first, tirx.truncmod(block, integer(count)))]
    for i in range(ahead):
        prologue.append(k_tile.copied(tirx.truncmod(first + i, integer(count)), integer(i * k_tile.length)))
    prologue += [at.fill.set(integer(ahead * k_tile.length)), at.read.set(integer(0)), at.left.set(integer(count))]
    prologue += [at.later.set(tirx.truncmod(first + ahead, integer(count))), entry.set(first)]
    line = [each for index in range(count) for each in _stretch(kernel, index, at)]
    # No k-tile is left where the first is number 0: its first round is whole.
    entered = jump_table("enter", tirx.Select(at.left.value > 0, entry.value, integer(count)))
    steps = SeqStmt([entered, *line, jump_table("end"), entry.set(integer(0))])
    rounds = For(turn, integer(0), integer(2), tirx.ForKind.SERIAL, steps)
    # Which k-tile is a block's last is known when it runs.
    goes_on = [launch_dependents()] if kernel.launch == DependentLaunch.LAST_K_TILE else []
    return prologue, sequence([rounds, *goes_on])


class _Position:
    """Where a block of a rotated kernel is: where it copies to and computes from, how many k-tiles are left, and which
    is copied later.

    It is counted in registers. Computed from a k-tile's number it would not depend on the round, so compilers would
    compute it for all k-tiles before the loop: that fills all registers, and no shared load is issued ahead of its use
    any more.
    """

    def __init__(self) -> None:
        self.fill, self.read, self.left, self.later = map(Counter, ("fill", "read", "left", "later"))


def _stretch(kernel: _Kernel, index: int, at: _Position) -> list[Stmt]:
    """K-tile `index` in the straight line of a rotated kernel, which may be entered before it and left behind it."""
    k_tile, end = kernel.k_tile, integer(kernel.k_tile.length * (kernel.stages - 1))
    copy = k_tile.copied(at.later.value, at.fill.value)
    more = SeqStmt([copy, at.fill.next(k_tile.length, end), at.later.next(1, integer(k_tile.count - 1))])
    # Where nothing is left to copy an empty group is committed, so that the count of groups in flight stays.
    copies = IfThenElse(at.left.value > kernel.ahead, more, committed(nothing()))
    step = [*k_tile.step(integer(index), at.read.value, [copies]), at.read.next(k_tile.length, end)]
    body = waited(kernel.ahead - 1, SeqStmt([*step, at.left.set(at.left.value - 1)]))
    return [jump_table("case", integer(index)), body, jump_table("leave", at.left.value < 1)]


# What a kernel does in each order: (before a thread knows its tile of output channels, for its tile).
_STATEMENTS = {Order.STRAIGHT: _straight, Order.ROTATED: _rotated}
