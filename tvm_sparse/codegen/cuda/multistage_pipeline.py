"""Chunk loops as rings of asynchronous copies with straight-line code.

A kernel that is staged chunk by chunk has, late in lowering, one copy of the weights' code for each chunk and each tile
of output channels. Chosen inside the chunk loop, that code is entered by a branch a chunk, and instruction fetch, which
runs ahead only along straight lines, starts anew each time. `MakeRings` rewrites the chunk loop that the annotation
`RING` marks:

* the tile, and the part of the input channels where these are divided between blocks (`cluster`), is chosen once,
  and its chunks follow each other without a branch; the first copies, the same for all tiles, come before that;
  in large kernels all of it lies behind the choice, a piece that can be compiled by itself (`pieces`);
* copies run ahead of the arithmetic by as many chunks as the ring has buffers but one, with one barrier a chunk: behind
  it all threads have left the buffer that is filled next. (TVM's software pipeline has two.)

`TURNED`, thread blocks start at different chunks and wrap around. Blocks that run together and start together ask
for the same cold code at the same time, and the cache that serves them delivers it once to each: 14 cycles an
instruction on an H200. Turned, each block finds most code already fetched by others, as long as one tile's code fits
that cache (about 150 KB): 128x128x3x3 at density 0.1 on 28x28 maps, batch 64, took 50 us turned and 78 us not, written
by hand. Kernels whose code is executed many times lose by it (docs/cuda.md).

`PERSISTENT`, there are as many thread blocks as the GPU holds at once, and each goes on with the pixels of others: the
first copies for those are on their way while it computes its last chunks.

The kernel says when the next one may start (`overlap`).
"""

from __future__ import annotations

import math

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import AllocBuffer, AttrStmt, Bind, For, IfThenElse, IntImm, SeqStmt, Stmt, Var

from tvm_sparse.codegen.cuda import jump_table, separate_compilation
from tvm_sparse.codegen.cuda.async_copies import ChunkCopies
from tvm_sparse.codegen.cuda.cluster_reduction import COMMON
from tvm_sparse.codegen.cuda.dependent_launch import release
from tvm_sparse.codegen.cuda.k_tile import Chunk
from tvm_sparse.codegen.tir.branch_tree import selected
from tvm_sparse.codegen.tir.thread_axes import PART_AXIS, Nest, is_thread_axis
from tvm_sparse.codegen.tir.tir_builder import (
    Counter,
    committed,
    integer,
    is_barrier,
    nothing,
    sequence,
    substituted,
    waited,
)
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import (
    AT_EXIT,
    AT_ONCE,
    FOLD,
    LAST_CHUNK,
    ORDER,
    PERSISTENT,
    RELEASE,
    RING,
    STRAIGHT,
    TURNED,
    WEIGHT_ATTRIBUTE,
)
from tvm_sparse.scheduling.cuda.occupancy import cannot_persist, is_large
from tvm_sparse.target.gpu import GpuInfo, gpu_info

# The thread axes that select code: over tiles of output channels, and over parts of the input channels.
SELECTING = ("blockIdx.y", PART_AXIS)
# The axes of a block's threads, the fastest last.
THREADS = ("threadIdx.z", "threadIdx.y", "threadIdx.x")


def make_rings_pass() -> tvm.transform.Pass:
    """The pass `MakeRings`; functions without an annotated loop are left alone.

    It runs behind ``ThreadSync``, whose barriers it replaces.
    """

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_sparse.MakeRings")
    def make(func: tirx.PrimFunc, _module: tvm.IRModule, _context: object) -> tirx.PrimFunc:
        loops: list[For] = []
        tvm_ffi.structural_walk(func.body, (For, lambda loop: loops.append(loop) if RING in loop.annotations else None))
        if not loops:
            return func
        name = str(func.attrs["global_symbol"]) if "global_symbol" in func.attrs else "kernel"
        if len(loops) > 1:
            raise BuildError(name, "more than one loop of chunks", len(loops), "1", "report this schedule")
        body = _Kernel(name, func.body, loops[0], _non_zeros(func), gpu_info(func.attrs["target"])).rewritten()
        return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)

    return make


def _non_zeros(func: tirx.PrimFunc) -> int:
    """Of the weight that is folded into the function; none where it is an argument."""
    return int(np.count_nonzero(func.attrs[WEIGHT_ATTRIBUTE].numpy())) if WEIGHT_ATTRIBUTE in func.attrs else 0


class _Kernel:
    """The body of one kernel around its chunk loop."""

    def __init__(self, name: str, body: Stmt, loop: For, non_zeros: int, gpu: GpuInfo):
        self.name, self.body, self.loop, self.large, self.gpu = name, body, loop, is_large(non_zeros), gpu
        self.axes = Nest.of(body).axes
        depth, count = int(loop.annotations[RING]), int(loop.extent)
        # Where there are fewer chunks than buffers, each has its own.
        self.buffers = min(depth, count)
        self.ahead = self.buffers - 1 if count >= depth else count
        self.order = int(loop.annotations.get(ORDER, STRAIGHT))
        self.release = int(loop.annotations.get(RELEASE, AT_EXIT))
        resident = self._resident()
        # Thread blocks of a persistent grid.
        self.held = gpu.multiprocessors * resident
        few = self.order == TURNED and count <= self.ahead
        blocks = self.axes["blockIdx.x"][1]
        if few or (self.order == PERSISTENT and cannot_persist(gpu, blocks, resident, count, depth, non_zeros)):
            self.order = STRAIGHT
        # Thread blocks in all, and those of a persistent grid, which do the work of all.
        work = math.prod(extent for tag, (_, extent) in self.axes.items() if tag not in THREADS)
        self.grid = work // blocks * self.held if self.order == PERSISTENT else work
        self.chunk = self._chunk(work <= gpu.multiprocessors)

    def _resident(self) -> int:
        """Thread blocks that a multiprocessor should hold at once."""
        found: list[int] = []

        def visit(loop: For) -> None:
            if FOLD in loop.annotations:
                found.append(int(loop.annotations[FOLD]))

        tvm_ffi.structural_walk(self.loop, (For, visit))
        return max([1, *found])

    def _chunk(self, alone: bool) -> Chunk:
        parts = list(self.loop.body.seq) if isinstance(self.loop.body, SeqStmt) else [self.loop.body]
        parts = [part for part in parts if not is_barrier(part)]
        if len(parts) != 2:
            raise BuildError(self.name, "a chunk is not one copy and one nest", len(parts), "2", "report this schedule")
        count = int(self.loop.extent)
        threads = [self.axes[tag] for tag in THREADS if tag in self.axes]
        block = self.axes["blockIdx.x"][0] if self.order == PERSISTENT else None
        copies = ChunkCopies(self.name, parts[0], self.loop.loop_var, count, threads, block)
        (length,) = copies.buffer.ty.shape
        return Chunk(self.loop.loop_var, count, copies, parts[1], int(length), alone)

    def rewritten(self) -> Stmt:
        """The kernel with the chunk loop as a ring, one copy of everything for each tile."""
        least_bytes = self.gpu.spread_bytes(self.grid) if self.release == AT_ONCE else 0
        grown = _grown(self.chunk.copies.buffer, self.buffers, least_bytes)
        body = self._at_threads(self.body)

        def allocation(node: AllocBuffer) -> Stmt:
            return AllocBuffer(grown) if node.buffer.same_as(self.chunk.copies.buffer) else node

        body = tvm_ffi.structural_map(body, (AllocBuffer, allocation), order="post")
        return substituted(body, self.chunk.copies.buffer, grown)

    def _at_threads(self, body: Stmt, chosen: tuple[tuple[Var, int], ...] = ()) -> Stmt:
        """`body` with what lies inside its innermost thread axis made one copy for each tile and part."""
        if isinstance(body, AttrStmt):
            if is_thread_axis(body) and body.node.thread_tag in SELECTING:
                chosen = (*chosen, (body.node.var, int(body.value)))
            value = body.value
            if is_thread_axis(body) and body.node.thread_tag == "blockIdx.x" and self.order == PERSISTENT:
                value = integer(self.held)
            return AttrStmt(body.node, body.attr_key, value, self._at_threads(body.body, chosen))
        if isinstance(body, SeqStmt) and is_thread_axis(body.seq[-1]):
            return SeqStmt([*body.seq[:-1], self._at_threads(body.seq[-1], chosen)])
        before, ring, after = self._around(body)
        if self.large:
            return selected(sequence([*before, ring, *after]), chosen, separate_compilation.piece)
        return sequence([*before, selected(ring, chosen), *after])

    def _around(self, body: Stmt) -> tuple[list[Stmt], Stmt, list[Stmt]]:
        """What a thread does: before it knows its tile, for its tile, and after that."""
        statements = list(body.seq) if isinstance(body, SeqStmt) else [body]
        after: list[Stmt] = []
        if isinstance(statements[-1], AttrStmt) and statements[-1].attr_key == COMMON:
            after = [statements.pop().body]
        before, ring = self._turned() if self.order == TURNED else self._straight()
        if self.release == AT_ONCE:
            before.insert(0, release())
        for index, each in enumerate(statements):
            if isinstance(each, For) and RING in each.annotations:
                whole = sequence([*statements[:index], ring, *statements[index + 1 :]])
                return before, self._persistent(whole) if self.order == PERSISTENT else whole, after
        raise BuildError(
            self.name, "the loop of chunks is not among a thread's statements", hint="report this schedule"
        )

    def _straight(self) -> tuple[list[Stmt], Stmt]:
        """The first copies, and the chunks in their order; persistent, the first copies of the next pixels too."""
        chunk, ahead, goes_on = self.chunk, self.ahead, self.order == PERSISTENT

        def slot(index: int) -> IntImm:
            return integer(index % self.buffers * chunk.length)

        before = [*chunk.copies.prologue, *(chunk.copied(integer(i), slot(i)) for i in range(ahead))]
        parts: list[Stmt] = []
        for index in range(chunk.count):
            later = index + ahead
            copies = [chunk.copied(integer(later % chunk.count), slot(later))] if later < chunk.count or goes_on else []
            if later == chunk.count and goes_on:
                copies = [*chunk.copies.moved(self._next()), *copies]
            left = ahead if goes_on else min(ahead, chunk.count - index)
            turn = chunk.turn(copies, integer(index), slot(index))
            if self.release == LAST_CHUNK and index == chunk.count - 1:
                turn.insert(1, release())
            parts.append(waited(left - 1, SeqStmt(turn)))
        return before, sequence(parts)

    def _next(self) -> tirx.Expr:
        """The block whose pixels come next; behind the last one, that one again, whose copies nobody reads."""
        block, extent = self.axes["blockIdx.x"]
        return tirx.min(block + integer(self.held), integer(extent - 1))

    def _persistent(self, body: Stmt) -> Stmt:
        """`body` of one block for the pixels of one after the other."""
        (block, extent), held = self.axes["blockIdx.x"], self.held
        turn, here = Var("turn", block.ty), Var("here", block.ty)
        body = SeqStmt([Bind(here, block + turn * integer(held)), substituted(body, block, here)])
        if extent % held:
            body = IfThenElse(block + turn * integer(held) < integer(extent), body, None)
        return For(turn, integer(0), integer(-(-extent // held)), tirx.ForKind.SERIAL, body)

    def _turned(self) -> tuple[list[Stmt], Stmt]:
        """The first copies, and two rounds over the chunks: from the block's first one to the end, then up to it.

        A round enters the chunks' straight line by a ``switch``, which TIR does not have: each chunk passed over with a
        branch of its own costs a miss of the instruction cache, a microsecond a block in all.

        What is copied next and where to, where the next chunk is read, and how many are left is counted in registers.
        Computed from a chunk's number it would not depend on the round, so compilers would compute it for all chunks
        before the loop: that fills all registers, and no shared load is issued ahead of its use any more.
        """
        chunk, ahead, count = self.chunk, self.ahead, self.chunk.count
        block, _ = self.axes["blockIdx.x"]
        first, turn = Var("first", block.ty), Var("turn", block.ty)
        fill, read, left, later, entry = counters = [
            Counter(name) for name in ("fill", "read", "left", "later", "entry")
        ]
        before: list[Stmt] = [AllocBuffer(each.buffer) for each in counters]
        before += [*chunk.copies.prologue, Bind(first, tirx.truncmod(block, integer(count)))]
        for i in range(ahead):
            before.append(chunk.copied(tirx.truncmod(first + i, integer(count)), integer(i * chunk.length)))
        before += [fill.set(integer(ahead * chunk.length)), read.set(integer(0)), left.set(integer(count))]
        before += [later.set(tirx.truncmod(first + ahead, integer(count))), entry.set(first)]
        end = integer(chunk.length * (self.buffers - 1))
        line: list[Stmt] = []
        for index in range(count):
            copy = chunk.copied(later.value, fill.value)
            # Where nothing is left to copy an empty group is committed, so that the count of groups in flight stays.
            more = SeqStmt([copy, fill.next(chunk.length, end), later.next(1, integer(count - 1))])
            copies = IfThenElse(left.value > ahead, more, committed(nothing()))
            steps = [*chunk.turn([copies], integer(index), read.value), read.next(chunk.length, end)]
            body = waited(ahead - 1, SeqStmt([*steps, left.set(left.value - 1)]))
            line += [jump_table.case(index), body, jump_table.leave(left.value < 1)]
        # No chunk is left where the first is number 0: its first round is whole.
        entered = jump_table.enter(tirx.Select(left.value > 0, entry.value, integer(count)))
        steps = [entered, *line, jump_table.end(), entry.set(integer(0))]
        rounds = For(turn, integer(0), integer(2), tirx.ForKind.SERIAL, SeqStmt(steps))
        # Which chunk is a block's last is known when it runs.
        return before, SeqStmt([rounds, release()]) if self.release == LAST_CHUNK else rounds


def _grown(buffer: Var, buffers: int, least_bytes: int) -> Var:
    """A float32 buffer like `buffer`, as many times as long and of so many bytes at least."""
    (length,) = buffer.ty.shape
    length = max(int(length) * buffers, least_bytes // 4)
    return tirx.decl_buffer((length,), str(buffer.ty.dtype), buffer.name, scope=buffer.ty.storage_scope)
