"""Chunk loops as rings of asynchronous copies with straight-line code.

A kernel that is staged chunk by chunk has, late in lowering, one copy of the weights' code for each chunk and each tile
of output channels. Chosen inside the chunk loop, that code is entered by a branch a chunk, and instruction fetch, which
runs ahead only along straight lines, starts anew each time. `MakeRings` rewrites the chunk loop that the annotation
`RING` marks:

* the tile is chosen once, around the whole kernel, and the chunks of a tile follow each other without a branch; each
  tile's code is a piece that can be compiled by itself (`pieces`);
* copies run ahead of the arithmetic by as many chunks as the ring has buffers but one, with one barrier a chunk: behind
  it all threads have left the buffer that is filled next. (TVM's software pipeline has two.)

With `TURN`, thread blocks start at different chunks and wrap around. Blocks that run together and start together ask
for the same cold code at the same time, and the cache that serves them delivers it once to each: 14 cycles an
instruction on an H200. Turned, each block finds most code already fetched by others, as long as one tile's code fits
that cache (about 150 KB): 128x128x3x3 at density 0.1 on 28x28 maps, batch 64, took 50 us turned and 78 us not, written
by hand. Kernels whose code is executed many times lose by it (docs/cuda.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, TensorLoad
from tvm.tirx import (
    AllocBuffer,
    AttrStmt,
    Bind,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    IntImm,
    SeqStmt,
    Stmt,
    Var,
)

from tvm_sparse.copies import ChunkCopies, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.pieces import piece

# Annotation of a chunk loop: the number of buffers, 2 or more.
RING = "tvm_sparse.ring"
# Annotation of a chunk loop beside `RING`: 1 where blocks start at different chunks.
TURN = "tvm_sparse.turn"
# The thread axis over tiles of output channels, which selects code.
TILE_AXIS = "blockIdx.y"


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
        return tirx.PrimFunc(func.params, _Kernel(name, func.body, loops[0]).rewritten(), func.ret_type, func.attrs)

    return make


@dataclass(frozen=True)
class _Chunk:
    """One turn of the chunk loop: what is copied, and what is computed from the copy."""

    var: Var
    count: int
    copies: ChunkCopies
    compute: Stmt
    length: int

    def copied(self, index: tirx.Expr, slot: tirx.Expr) -> Stmt:
        """The copy of chunk `index` into buffer `slot`, committed as one group."""
        return _committed(self.copies.at(index, slot * _integer(self.length)))

    def computed(self, index: tirx.Expr, slot: tirx.Expr) -> Stmt:
        """The arithmetic on chunk `index`, which lies in buffer `slot`."""
        shift = slot * _integer(self.length)

        def load(node: TensorLoad) -> tirx.Expr:
            if not node.source.same_as(self.copies.buffer):
                return node
            return tirx.BufferLoad(node.source, [each + shift for each in node.indices])

        return substituted(tvm_ffi.structural_map(self.compute, (TensorLoad, load), order="post"), self.var, index)


class _Kernel:
    """The body of one kernel around its chunk loop."""

    def __init__(self, name: str, body: Stmt, loop: For):
        self.name, self.body, self.loop = name, body, loop
        self.turn = bool(int(loop.annotations.get(TURN, 0)))
        self.chunk = self._chunk()
        # Where there are fewer chunks than buffers, each has its own.
        self.buffers = min(int(loop.annotations[RING]), self.chunk.count)
        self.ahead = self.buffers - 1 if self.chunk.count >= int(loop.annotations[RING]) else self.chunk.count

    def _chunk(self) -> _Chunk:
        parts = list(self.loop.body.seq) if isinstance(self.loop.body, SeqStmt) else [self.loop.body]
        parts = [part for part in parts if not _is_barrier(part)]
        if len(parts) != 2:
            raise BuildError(self.name, "a chunk is not one copy and one nest", len(parts), "2", "report this schedule")
        count = int(self.loop.extent)
        copies = ChunkCopies(self.name, parts[0], self.loop.loop_var, count)
        (length,) = copies.buffer.ty.shape
        return _Chunk(self.loop.loop_var, count, copies, parts[1], int(length))

    def rewritten(self) -> Stmt:
        """The kernel with the chunk loop as a ring, one copy of everything for each tile."""
        grown = _grown(self.chunk.copies.buffer, self.buffers)
        body = self._at_threads(self.body)

        def allocation(node: AllocBuffer) -> Stmt:
            return AllocBuffer(grown) if node.buffer.same_as(self.chunk.copies.buffer) else node

        body = tvm_ffi.structural_map(body, (AllocBuffer, allocation), order="post")
        return substituted(body, self.chunk.copies.buffer, grown)

    def _at_threads(self, body: Stmt, tile: tuple[Var, int] | None = None) -> Stmt:
        """`body` with what lies inside its innermost thread axis made one copy for each tile."""
        if isinstance(body, AttrStmt):
            if body.attr_key == "thread_extent" and body.node.thread_tag == TILE_AXIS:
                tile = (body.node.var, int(body.value))
            return AttrStmt(body.node, body.attr_key, body.value, self._at_threads(body.body, tile))
        if isinstance(body, SeqStmt) and _has_threads(body.seq[-1]):
            return SeqStmt([*body.seq[:-1], self._at_threads(body.seq[-1], tile)])
        ring = tvm_ffi.structural_map(body, (For, lambda loop: self._ring() if RING in loop.annotations else loop))
        if tile is None or tile[1] == 1:
            return ring
        var, count = tile
        return _tree(var, 0, count, lambda index: piece(substituted(ring, var, _integer(index))))

    def _ring(self) -> Stmt:
        return self._turned() if self.turn and self.chunk.count > self.ahead else self._straight()

    def _straight(self) -> Stmt:
        chunk, ahead = self.chunk, self.ahead

        def slot(index: int) -> IntImm:
            return _integer(index % self.buffers)

        parts: list[Stmt] = list(chunk.copies.prologue)
        parts += [chunk.copied(_integer(i), slot(i)) for i in range(ahead)]
        for index in range(chunk.count):
            later = index + ahead
            copies = [chunk.copied(_integer(later), slot(later))] if later < chunk.count else []
            arithmetic = chunk.computed(_integer(index), slot(index))
            parts.append(_waited(min(ahead, chunk.count - index) - 1, SeqStmt([_barrier(), *copies, arithmetic])))
        return SeqStmt(parts)

    def _turned(self) -> Stmt:
        """Two rounds over the chunks: from the block's first chunk to the end, then from the beginning up to it.

        What is copied next and where to, where the next chunk is read, and how many are left is counted in registers.
        Computed from a chunk's number it would not depend on the round, so compilers would compute it for all chunks
        before the loop: that fills all registers, and no shared load is issued ahead of its use any more.
        """
        chunk, ahead, count = self.chunk, self.ahead, self.chunk.count
        block = self._block()
        first, turn = Var("first", block.ty), Var("turn", block.ty)
        fill, read, left, later = (_Counter(name) for name in ("fill", "read", "left", "later"))
        parts: list[Stmt] = [*chunk.copies.prologue, Bind(first, tirx.truncmod(block, _integer(count)))]
        for i in range(ahead):
            parts.append(chunk.copied(tirx.truncmod(first + i, _integer(count)), _integer(i)))
        parts += [fill.set(_integer(ahead)), read.set(_integer(0)), left.set(_integer(count))]
        parts.append(later.set(tirx.truncmod(first + ahead, _integer(count))))
        rounds: list[Stmt] = []
        for index in range(count):
            copy = chunk.copied(later.value, fill.value)
            # Where nothing is left to copy an empty group is committed, so that the count of groups in flight stays.
            more = SeqStmt([copy, fill.next(self.buffers), later.next(count)])
            copies = IfThenElse(left.value > ahead, more, _committed(_nothing()))
            steps = [_barrier(), copies, chunk.computed(_integer(index), read.value), read.next(self.buffers)]
            body = _waited(ahead - 1, SeqStmt([*steps, left.set(left.value - 1)]))
            in_round = tirx.Select(turn < 1, first <= index, first > index)
            rounds.append(IfThenElse(in_round, body, None))
        loop = For(turn, _integer(0), _integer(2), tirx.ForKind.SERIAL, SeqStmt(rounds))
        return SeqStmt([*(AllocBuffer(each.buffer) for each in (fill, read, left, later)), *parts, loop])

    def _block(self) -> Var:
        found: list[Var] = []
        tvm_ffi.structural_walk(
            self.body,
            (
                AttrStmt,
                lambda node: (
                    found.append(node.node.var)
                    if node.attr_key == "thread_extent" and node.node.thread_tag == "blockIdx.x"
                    else None
                ),
            ),
        )
        return found[0]


class _Counter:
    """An integer in a register."""

    def __init__(self, name: str):
        self.buffer = tirx.decl_buffer((1,), "int32", name, scope="local")
        self.value = tirx.BufferLoad(self.buffer, [_integer(0)])

    def set(self, value: tirx.Expr) -> Stmt:
        """The statement that assigns `value`."""
        return BufferStore(self.buffer, value, [_integer(0)])

    def next(self, count: int) -> Stmt:
        """The statement that moves on by one, modulo `count`."""
        return self.set(tirx.Select(self.value < count - 1, self.value + 1, _integer(0)))


def _integer(value: int) -> IntImm:
    return IntImm("int32", value)


def _nothing() -> Stmt:
    return Evaluate(_integer(0))


def _has_threads(stmt: Stmt) -> bool:
    return isinstance(stmt, AttrStmt) and stmt.attr_key == "thread_extent"


def _is_barrier(stmt: Stmt) -> bool:
    return (
        isinstance(stmt, Evaluate)
        and isinstance(stmt.value, Call)
        and stmt.value.op.same_as(Op.get("tirx.tvm_storage_sync"))
    )


def _barrier() -> Stmt:
    return Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared.dyn"))


def _committed(copies: Stmt) -> Stmt:
    """`copies` as one group that can be waited for."""
    return AttrStmt(_integer(0), "async_commit_queue_scope", _integer(0), copies)


def _waited(in_flight: int, body: Stmt) -> Stmt:
    """`body` behind a wait until at most `in_flight` groups of this thread's copies are not complete."""
    inner = AttrStmt(_integer(0), "async_wait_inflight_count", _integer(in_flight), body)
    return AttrStmt(_integer(0), "async_wait_queue_scope", _integer(0), inner)


def _grown(buffer: Var, buffers: int) -> Var:
    """A buffer like `buffer`, as many times as long."""
    (length,) = buffer.ty.shape
    return tirx.decl_buffer((int(length) * buffers,), str(buffer.ty.dtype), buffer.name, scope=buffer.ty.storage_scope)


def _tree(var: Var, start: int, stop: int, make: Callable[[int], Stmt]) -> Stmt:
    """``make(index)`` for the value of `var` among ``start`` to ``stop - 1``, behind a binary tree of branches."""
    if stop - start == 1:
        return make(start)
    middle = (start + stop) // 2
    below, above = _tree(var, start, middle, make), _tree(var, middle, stop, make)
    return IfThenElse(var < _integer(middle), below, above)
