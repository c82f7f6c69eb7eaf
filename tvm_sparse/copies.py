"""A chunk's copy to shared memory as asynchronous copies whose addresses are computed once.

Which element a thread copies, whether it lies in the padding, and where it goes do not depend on the chunk, except for
a constant distance. Left in the copies, all of it is computed anew for each, as compilers move no code over barriers.
Here it is bound to variables once, and a copy is one ``cp.async`` with constant offsets; in the padding it copies no
bytes, and the hardware fills in zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call, Op, TensorLoad
from tvm.tirx import AttrStmt, Bind, BufferStore, Evaluate, FloatImm, For, IfThenElse, IntImm, SeqStmt, Stmt, Var

from tvm_sparse.affine import split_index
from tvm_sparse.errors import BuildError

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
    takes part.
    """

    buffer: Var
    to: Var
    source: Var
    start: Var
    step: int
    inside: Var | None
    lanes: int
    guard: Var | None


@dataclass(frozen=True)
class _Zeros:
    """Zeros that one thread stores in every chunk, where what is staged lies in the padding altogether."""

    buffer: Var
    index: tirx.Expr
    value: tirx.Expr
    guard: Var | None


class ChunkCopies:
    """The copies that `stmt`, the body of a chunk loop over `chunk` of extent `count`, makes.

    `prologue` binds what does not depend on the chunk; it comes before everything that `at` returns.

    Raises
    ------
    BuildError
        `stmt` is not a nest of plain copies.
    """

    def __init__(self, name: str, stmt: Stmt, chunk: Var, count: int):
        self.name, self.chunk, self.count = name, chunk, count
        self.prologue: list[Stmt] = []
        self._copies: list[_Copy | _Zeros] = []
        self._collect(stmt, None)
        buffers = [copy.buffer for copy in self._copies]
        if not buffers or not all(buffer.same_as(buffers[0]) for buffer in buffers):
            raise self._refusal("it fills several buffers")
        self.buffer = buffers[0]

    def at(self, chunk: tirx.Expr, shift: tirx.Expr) -> Stmt:
        """The copies of one chunk, their destination moved by `shift` elements."""
        copies = [self._emit(copy, chunk, shift) for copy in self._copies]
        return SeqStmt(copies) if len(copies) > 1 else copies[0]

    def _emit(self, copy: _Copy | _Zeros, chunk: tirx.Expr, shift: tirx.Expr) -> Stmt:
        if isinstance(copy, _Zeros):
            base, lanes = _first([copy.index])
            index = base + shift if lanes == 1 else tirx.Ramp(base + shift, copy.index.stride, lanes)
            zeros = BufferStore(copy.buffer, copy.value, [index])
            return zeros if copy.guard is None else IfThenElse(copy.guard, zeros, None)
        to = copy.to + tirx.Cast("uint32", shift * IntImm("int32", 4))
        start = copy.start + chunk * IntImm("int32", copy.step)
        source = tirx.address_of(tirx.BufferLoad(copy.source, [start]))
        size = 4 * copy.lanes
        code = _SOURCE.format(bytes=size, cache=_CACHE[size])
        inside = tirx.const(True, "bool") if copy.inside is None else copy.inside
        call = Evaluate(cuda_func_call(_FUNCTION.format(bytes=size), to, source, inside, source_code=code))
        return call if copy.guard is None else IfThenElse(copy.guard, call, None)

    def _collect(self, stmt: Stmt, guard: tirx.Expr | None) -> None:
        if isinstance(stmt, For):
            for index in range(int(stmt.extent)):
                self._collect(substituted(stmt.body, stmt.loop_var, IntImm("int32", index)), guard)
        elif isinstance(stmt, IfThenElse) and stmt.else_case is None:
            self._collect(stmt.then_case, stmt.condition if guard is None else tirx.And(guard, stmt.condition))
        elif isinstance(stmt, AttrStmt):
            self._collect(stmt.body, guard)
        elif isinstance(stmt, BufferStore):
            self._copies.append(self._copy(stmt, guard))
        else:
            raise self._refusal(type(stmt).__name__)

    def _copy(self, store: BufferStore, guard: tirx.Expr | None) -> _Copy | _Zeros:
        inside, value = None, store.value
        if _is_zero(value):
            (index,) = store.indices
            return _Zeros(store.buffer, index, value, None if guard is None else self._bind("guard", guard))
        if isinstance(value, Call) and value.op.same_as(Op.get("prim.if_then_else")):
            inside, value = value.args[0], value.args[1]
        if not isinstance(value, TensorLoad):
            raise self._refusal("it does not only copy")
        to, lanes = _first(store.indices)
        source, source_lanes = _first(value.indices)
        form = split_index(source, [self.chunk], [self.count])
        if form is None or lanes != source_lanes or 4 * lanes not in _CACHE:
            raise self._refusal("its addresses are not regular")
        offsets = [int(offset) for offset in np.broadcast_to(form.offsets, self.count)]
        step = offsets[-1] - offsets[-2] if self.count > 1 else 0
        if offsets != [offsets[0] + step * i for i in range(self.count)]:
            raise self._refusal("its chunks are not equally far apart")
        start = form.at(offsets[0])
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
        return BuildError(self.name, f"the copy of a chunk cannot be made asynchronous: {what}", hint="report this")


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
