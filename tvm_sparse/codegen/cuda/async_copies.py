"""A k-tile's copy to shared memory as asynchronous copies whose addresses are computed once.

Which element a thread copies, whether it lies in the padding, and where it goes do not depend on the k-tile, except for
a constant distance. Left in the copies, all of it is computed anew for each, as compilers move no code over barriers.
Here it is bound to variables once, and a copy is one ``cp.async`` with constant offsets; in the padding it copies no
bytes, and the hardware fills in zeros.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tvm import tirx
from tvm.ir import Call, Expr, Op, TensorLoad
from tvm.tirx import AttrStmt, Bind, BufferStore, FloatImm, For, SeqStmt, Stmt, Var

from tvm_sparse.codegen.cuda.cp_async import SIZES, Copy, Zeros, element_bytes, first, shared_address
from tvm_sparse.codegen.tir.index_offsets import shifted, split_index, variables
from tvm_sparse.codegen.tir.tir_builder import integer, sequence, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.cuda.folded.thread_layout import spread


class KTileCopies:
    """The copies that `stmt`, the body of a k-tile loop over `k_tile` of extent `count`, makes.

    `stmt` is a nest of copies; it is laid over `threads`, thread axes and their extents, the fastest last
    (`thread_layout`). `prologue` binds what does not depend on the k-tile; it comes before everything that `at`
    returns. BuildError where `stmt` is not a nest of plain copies.
    """

    def __init__(self, name: str, stmt: Stmt, k_tile: Var, count: int, threads: Sequence[tuple[Var, int]]):
        self.name, self.k_tile, self.count, self.threads = name, k_tile, count, threads
        self.prologue: list[Stmt] = []
        self._copies: list[Copy | Zeros] = []
        self._collect(stmt)
        buffers = [copy.buffer for copy in self._copies]
        if not buffers or not all(buffer.same_as(buffers[0]) for buffer in buffers):
            raise self._refusal("it fills several buffers")
        self.buffer = buffers[0]

    def at(self, k_tile: Expr, shift: Expr) -> Stmt:
        """The copies of one k-tile, their destination moved by `shift` elements."""
        return sequence([copy.code(k_tile, shift) for copy in self._copies])

    def _collect(self, stmt: Stmt) -> None:
        """Add what each thread copies of a nest, or of one after the other."""
        if isinstance(stmt, SeqStmt):
            for each in stmt.seq:
                self._collect(each)
            return
        loops: list[For] = []
        while isinstance(stmt, (For, AttrStmt)):
            loops += [stmt] if isinstance(stmt, For) else []
            stmt = stmt.body
        if not isinstance(stmt, BufferStore) or self._is_bound(stmt):
            raise self._refusal("it is no nest of copies, or laid over threads already")
        steps = self._steps(loops, stmt)
        extents = tuple(int(loop.extent) for loop in loops)
        threads = math.prod(extent for _, extent in self.threads)
        found = spread(extents, len(steps), threads, self.count)
        laid = (*found.groups, *extents[len(found.groups) :])
        taking_part = math.prod(laid)
        for round_ in range(found.rounds):
            index = shifted(self._thread(), round_ * threads)
            guard = None if (round_ + 1) * threads <= taking_part else index < integer(taking_part)
            own = stmt
            for loop, place in zip(loops, _places(index, laid), strict=True):
                own = substituted(own, loop.loop_var, place)
            copy = self._copy(own, guard)
            for at in np.ndindex(*(extent // group for extent, group in zip(extents, found.groups, strict=False))):
                moves = [i * group for i, group in zip(at, found.groups, strict=True)]
                further = [sum(i * step[side] for i, step in zip(moves, steps, strict=False)) for side in (0, 1)]
                self._copies.append(replace(copy, further=(further[0], further[1])))

    def _is_bound(self, store: BufferStore) -> bool:
        found = variables([*store.indices, store.value])
        return any(each.same_as(axis) for each in found for axis, _ in self.threads)

    def _steps(self, loops: list[For], store: BufferStore) -> list[tuple[int, int]]:
        """Of the first loops, as long as all else is independent of them: elements that a step moves both sides by."""
        inside, value = _condition(store.value)
        sides = [first(store.indices)[0]]
        if isinstance(value, TensorLoad):
            sides.append(first(value.indices)[0])
        found: list[tuple[int, int]] = []
        for loop in loops:
            if inside is not None and any(each.same_as(loop.loop_var) for each in variables([inside])):
                break
            lines = [_line(side, loop.loop_var, int(loop.extent)) for side in sides]
            if None in lines:
                break
            distances = [line[1] for line in lines if line]
            found.append((distances[0], distances[-1]))
        return found

    def _thread(self) -> Expr:
        """The number of a thread among those of its block."""
        (number, _), *others = self.threads
        for axis, extent in others:
            number = number * integer(extent) + axis
        return number

    def _copy(self, store: BufferStore, guard: Expr | None) -> Copy | Zeros:
        inside, value = _condition(store.value)
        if _is_zero(value):
            (index,) = store.indices
            return Zeros(store.buffer, index, value, None if guard is None else self._bind("guard", guard))
        if not isinstance(value, TensorLoad):
            raise self._refusal("it does not only copy")
        to, lanes = first(store.indices)
        source, source_lanes = first(value.indices)
        line = _line(source, self.k_tile, self.count)
        if line is None or lanes != source_lanes or element_bytes(store.buffer) * lanes not in SIZES:
            raise self._refusal("its addresses are not regular, or its k-tiles not equally far apart")
        start, step = line
        for condition in (inside, guard):
            if condition is not None:
                start = tirx.Select(condition, start, integer(0))
        return Copy(
            store.buffer,
            self._bind("to", shared_address(store.buffer, to)),
            value.source,
            self._bind("start", start),
            step,
            None if inside is None else self._bind("inside", inside),
            element_bytes(store.buffer) * lanes,
            None if guard is None else self._bind("guard", guard),
        )

    def _bind(self, name: str, value: Expr) -> Var:
        var = Var(name, value.ty)
        self.prologue.append(Bind(var, value))
        return var

    def _refusal(self, what: str) -> BuildError:
        return BuildError(self.name, f"the copy of a k-tile cannot be made asynchronous: {what}", hint="tune again")


def _condition(value: Expr) -> tuple[Expr | None, Expr]:
    """(where something is copied, or None for everywhere; what is copied)."""
    if isinstance(value, Call) and value.op.same_as(Op.get("prim.if_then_else")):
        return value.args[0], value.args[1]
    return None, value


def _line(index: Expr, var: Var, extent: int) -> tuple[Expr, int] | None:
    """(`index` where `var` is 0, how far it moves as `var` goes on by one); None where that differs or is not known."""
    form = split_index(index, [var], [extent])
    if form is None:
        return None
    offsets = np.broadcast_to(form.offsets, extent)
    distance = int(offsets[-1] - offsets[-2]) if extent > 1 else 0
    if not np.array_equal(offsets, offsets[0] + distance * np.arange(extent)):
        return None
    return form.at(int(offsets[0])), distance


def _places(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """The indices of point `number` of a nest of `extents`, the last of which is the fastest."""
    places: list[Expr] = []
    below = 1
    for position in reversed(range(len(extents))):
        whole = number if below == 1 else tirx.floordiv(number, integer(below))
        # What the guard leaves is below the first extent.
        places.append(whole if position == 0 else tirx.floormod(whole, integer(extents[position])))
        below *= extents[position]
    return places[::-1]


def _is_zero(value: Expr) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(value, FloatImm) and value.value == 0
