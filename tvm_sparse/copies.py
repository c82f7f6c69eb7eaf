"""A chunk's copy to shared memory as asynchronous copies whose addresses are computed once.

Which element a thread copies, whether it lies in the padding, and where it goes do not depend on the chunk, except for
a constant distance. Left in the copies, all of it is computed anew for each, as compilers move no code over barriers.
Here it is bound to variables once, and a copy is one ``cp.async`` with constant offsets; in the padding it copies no
bytes, and the hardware fills in zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call, Op, TensorLoad
from tvm.tirx import AttrStmt, Bind, BufferStore, Evaluate, FloatImm, For, IfThenElse, IntImm, SeqStmt, Stmt, Var

from tvm_sparse.affine import shifted, split_index, variables
from tvm_sparse.errors import BuildError
from tvm_sparse.spread import spread

# Bytes of one copy -> caching: 16 bytes may go past the level-1 cache, which has no use for what is staged.
_CACHE = {16: "cg", 8: "ca", 4: "ca"}
_FUNCTION = "tvm_sparse_copy_{bytes}"
# A predicate for the padding, not a number of bytes: for a number that is not known the address is made anew each time.
_SOURCE = """
__forceinline__ __device__ void tvm_sparse_copy_{bytes}(unsigned int to, const void* from, bool inside) {{
  __asm__ __volatile__("{{.reg .pred outside; setp.eq.u32 outside, %2, 0;"
                       " cp.async.{cache}.shared.global [%0], [%1], {bytes}, outside;}}"
                       :: "r"(to), "l"(from), "r"((unsigned int)inside) : "memory");
}}
"""
_ADDRESS = "tvm_sparse_shared_address"
_ADDRESS_SOURCE = """
__forceinline__ __device__ unsigned int tvm_sparse_shared_address(const void* pointer) {
  return (unsigned int)__cvta_generic_to_shared(pointer);
}
"""


@dataclass(frozen=True)
class _Copy:
    """One thread's copy of `lanes` floats in every chunk: ``buffer[to + slot] = source[start + chunk * step]``.

    `to` is an address in shared memory; zeros are copied where `inside` is false; `guard` is None where every thread
    takes part. `further` is how many elements beyond `to` and `start` it is.
    """

    buffer: Var
    to: Var
    source: Var
    start: Var
    step: int
    inside: Var | None
    lanes: int
    guard: Var | None
    further: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class _Zeros:
    """Zeros that one thread stores in every chunk, where what is staged lies in the padding altogether."""

    buffer: Var
    index: tirx.Expr
    value: tirx.Expr
    guard: Var | None
    further: tuple[int, int] = (0, 0)


class ChunkCopies:
    """The copies that `stmt`, the body of a chunk loop over `chunk` of extent `count`, makes.

    `stmt` is a nest of copies; it is laid over `threads`, thread axes and their extents, the fastest last (`spread`).
    `prologue` binds what does not depend on the chunk; it comes before everything that `at` returns.

    Raises
    ------
    BuildError
        `stmt` is not a nest of plain copies.
    """

    def __init__(self, name: str, stmt: Stmt, chunk: Var, count: int, threads: Sequence[tuple[Var, int]]):
        self.name, self.chunk, self.count, self.threads = name, chunk, count, threads
        self.prologue: list[Stmt] = []
        self._copies: list[_Copy | _Zeros] = []
        self._collect(stmt)
        buffers = [copy.buffer for copy in self._copies]
        if not buffers or not all(buffer.same_as(buffers[0]) for buffer in buffers):
            raise self._refusal("it fills several buffers")
        self.buffer = buffers[0]

    def at(self, chunk: tirx.Expr, shift: tirx.Expr) -> Stmt:
        """The copies of one chunk, their destination moved by `shift` elements."""
        copies = [self._emit(copy, chunk, shift) for copy in self._copies]
        return SeqStmt(copies) if len(copies) > 1 else copies[0]

    def _emit(self, copy: _Copy | _Zeros, chunk: tirx.Expr, shift: tirx.Expr) -> Stmt:
        shift = shifted(shift, copy.further[0])
        if isinstance(copy, _Zeros):
            base, lanes = _first([copy.index])
            index = base + shift if lanes == 1 else tirx.Ramp(base + shift, copy.index.stride, lanes)
            zeros = BufferStore(copy.buffer, copy.value, [index])
            return zeros if copy.guard is None else IfThenElse(copy.guard, zeros, None)
        to = copy.to + tirx.Cast("uint32", shift * IntImm("int32", 4))
        start = copy.start + shifted(chunk * IntImm("int32", copy.step), copy.further[1])
        source = tirx.address_of(tirx.BufferLoad(copy.source, [start]))
        size = 4 * copy.lanes
        code = _SOURCE.format(bytes=size, cache=_CACHE[size])
        inside = tirx.const(True, "bool") if copy.inside is None else copy.inside
        call = Evaluate(cuda_func_call(_FUNCTION.format(bytes=size), to, source, inside, source_code=code))
        return call if copy.guard is None else IfThenElse(copy.guard, call, None)

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
        for turn in range(found.rounds):
            index = shifted(self._thread(), turn * threads)
            guard = None if (turn + 1) * threads <= taking_part else index < IntImm("int32", taking_part)
            first: Stmt = stmt
            for loop, place in zip(loops, _places(index, laid), strict=True):
                first = substituted(first, loop.loop_var, place)
            copy = self._copy(first, guard)
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
        sides = [_first(store.indices)[0]]
        if isinstance(value, TensorLoad):
            sides.append(_first(value.indices)[0])
        found: list[tuple[int, int]] = []
        for loop in loops:
            if inside is not None and any(each.same_as(loop.loop_var) for each in variables([inside])):
                break
            distances = [_distance(side, loop.loop_var, int(loop.extent)) for side in sides]
            if None in distances:
                break
            found.append((distances[0] or 0, distances[-1] or 0))
        return found

    def _thread(self) -> tirx.Expr:
        """The number of a thread among those of its block."""
        (number, _), *others = self.threads
        for axis, extent in others:
            number = number * IntImm("int32", extent) + axis
        return number

    def _copy(self, store: BufferStore, guard: tirx.Expr | None) -> _Copy | _Zeros:
        inside, value = _condition(store.value)
        if _is_zero(value):
            (index,) = store.indices
            return _Zeros(store.buffer, index, value, None if guard is None else self._bind("guard", guard))
        if not isinstance(value, TensorLoad):
            raise self._refusal("it does not only copy")
        to, lanes = _first(store.indices)
        source, source_lanes = _first(value.indices)
        form = split_index(source, [self.chunk], [self.count])
        if form is None or lanes != source_lanes or 4 * lanes not in _CACHE:
            raise self._refusal("its addresses are not regular")
        step = _distance(source, self.chunk, self.count)
        if step is None:
            raise self._refusal("its chunks are not equally far apart")
        start = form.at(int(form.offsets.flat[0]))
        for condition in (inside, guard):
            if condition is not None:
                start = tirx.Select(condition, start, IntImm("int32", 0))
        element = tirx.address_of(tirx.BufferLoad(store.buffer, [to]))
        address = cuda_func_call(_ADDRESS, element, source_code=_ADDRESS_SOURCE, return_type="uint32")
        return _Copy(
            store.buffer,
            self._bind("to", address),
            value.source,
            self._bind("start", start),
            step,
            None if inside is None else self._bind("inside", inside),
            lanes,
            None if guard is None else self._bind("guard", guard),
        )

    def _bind(self, name: str, value: tirx.Expr) -> Var:
        var = Var(name, value.ty)
        self.prologue.append(Bind(var, value))
        return var

    def _refusal(self, what: str) -> BuildError:
        return BuildError(self.name, f"the copy of a chunk cannot be made asynchronous: {what}", hint="tune again")


def _condition(value: tirx.Expr) -> tuple[tirx.Expr | None, tirx.Expr]:
    """(where something is copied, or None for everywhere; what is copied)."""
    if isinstance(value, Call) and value.op.same_as(Op.get("prim.if_then_else")):
        return value.args[0], value.args[1]
    return None, value


def _distance(index: tirx.Expr, var: Var, extent: int) -> int | None:
    """Elements by which `index` moves as `var` goes on by one; None where these differ or are not known."""
    form = split_index(index, [var], [extent])
    if form is None:
        return None
    offsets = np.broadcast_to(form.offsets, extent)
    distance = int(offsets[-1] - offsets[-2]) if extent > 1 else 0
    return distance if np.array_equal(offsets, offsets[0] + distance * np.arange(extent)) else None


def _places(number: tirx.Expr, extents: Sequence[int]) -> list[tirx.Expr]:
    """The indices of point `number` of a nest of `extents`, the last of which is the fastest."""
    places: list[tirx.Expr] = []
    below = 1
    for position in reversed(range(len(extents))):
        whole = number if below == 1 else tirx.floordiv(number, IntImm("int32", below))
        # What the guard leaves is below the first extent.
        places.append(whole if position == 0 else tirx.floormod(whole, IntImm("int32", extents[position])))
        below *= extents[position]
    return places[::-1]


def substituted(stmt: Stmt, var: Var, value: object) -> Stmt:
    """`stmt` with `var` replaced by `value`."""
    return tvm_ffi.structural_map(stmt, (Var, lambda v: value if v.same_as(var) else v), order="post")


def _is_zero(value: tirx.Expr) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(value, FloatImm) and value.value == 0


def _first(indices: list) -> tuple[tirx.Expr, int]:
    """(first element, number of elements) of a flat index."""
    (index,) = indices
    return (index.base, int(index.lanes)) if isinstance(index, tirx.Ramp) else (index, 1)
