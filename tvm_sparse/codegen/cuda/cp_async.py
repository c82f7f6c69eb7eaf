"""One thread's copies from global to shared memory, as TIR with CUDA code in it."""

from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Expr
from tvm.tirx import BufferStore, Evaluate, IfThenElse, Stmt, Var

from tvm_sparse.codegen.tir.index_offsets import shifted
from tvm_sparse.codegen.tir.tir_builder import integer

# Bytes of one copy -> caching: 16 bytes may go past the level-1 cache, which has no use for what is staged.
CACHING = {16: "cg", 8: "ca", 4: "ca"}
_FUNCTION = "tvm_sparse_cp_async_{bytes}"
# A predicate for the padding, not a number of bytes: for a number that is not known the address is made anew each time.
_SOURCE = """
__forceinline__ __device__ void tvm_sparse_cp_async_{bytes}(unsigned int to, const void* from, bool inside) {{
  __asm__ __volatile__("{{.reg .pred outside; setp.eq.u32 outside, %2, 0;"
                       " cp.async.{cache}.shared.global [%0], [%1], {bytes}, outside;}}"
                       :: "r"(to), "l"(from), "r"((unsigned int)inside) : "memory");
}}
"""
# Two bytes, which asynchronous copies do not come in: rows of half precision whose length is odd.
_COPY_2 = "tvm_sparse_copy_2"
_COPY_2_SOURCE = """
__forceinline__ __device__ void tvm_sparse_copy_2(unsigned int to, const void* from, bool inside) {
  __asm__ __volatile__("{.reg .pred inside; .reg .b16 value; setp.ne.u32 inside, %2, 0; mov.b16 value, 0;"
                       " @inside ld.global.b16 value, [%1]; st.shared.b16 [%0], value;}"
                       :: "r"(to), "l"(from), "r"((unsigned int)inside) : "memory");
}
"""
# Bytes that one copy may have.
SIZES = (*CACHING, 2)
_ADDRESS = "tvm_sparse_shared_address"
_ADDRESS_SOURCE = """
__forceinline__ __device__ unsigned int tvm_sparse_shared_address(const void* pointer) {
  return (unsigned int)__cvta_generic_to_shared(pointer);
}
"""


def element_bytes(buffer: Var) -> int:
    """Bytes of an element of a buffer."""
    return int(tvm.DataType(str(buffer.ty.dtype)).itemsize)


@dataclass(frozen=True)
class Copy:
    """Some elements, `size` bytes, in every k-tile: ``buffer[to + slot] = source[start + k_tile * step]``.

    `to` is an address in shared memory; zeros are copied where `inside` is false; `guard` is None where every thread
    takes part. `further` is how many elements beyond `to` and `start` it is.
    """

    buffer: Var
    to: Var
    source: Var
    start: Expr
    step: int
    inside: Expr | None
    size: int
    guard: Var | None
    further: tuple[int, int] = (0, 0)

    def code(self, k_tile: Expr, shift: Expr) -> Stmt:
        """The copy of one k-tile, its destination moved by `shift` elements."""
        to = self.to + tirx.Cast("uint32", shifted(shift, self.further[0]) * integer(element_bytes(self.buffer)))
        start = self.start + shifted(k_tile * integer(self.step), self.further[1])
        source = tirx.address_of(tirx.BufferLoad(self.source, [start]))
        inside = tirx.const(True, "bool") if self.inside is None else self.inside
        if self.size in CACHING:
            name, code = _FUNCTION.format(bytes=self.size), _SOURCE.format(bytes=self.size, cache=CACHING[self.size])
        else:
            name, code = _COPY_2, _COPY_2_SOURCE
        call = Evaluate(cuda_func_call(name, to, source, inside, source_code=code))
        return call if self.guard is None else IfThenElse(self.guard, call, None)


@dataclass(frozen=True)
class Zeros:
    """Zeros stored in every k-tile, where what is staged lies in the padding altogether."""

    buffer: Var
    index: Expr
    value: Expr
    guard: Var | None
    further: tuple[int, int] = (0, 0)

    def code(self, _k_tile: Expr, shift: Expr) -> Stmt:
        """The store for one k-tile, moved by `shift` elements."""
        base, lanes = first([self.index])
        index = base + shifted(shift, self.further[0])
        index = index if lanes == 1 else tirx.Ramp(index, self.index.stride, lanes)
        zeros = BufferStore(self.buffer, self.value, [index])
        return zeros if self.guard is None else IfThenElse(self.guard, zeros, None)


def shared_address(buffer: Var, index: Expr) -> Expr:
    """The address in shared memory of an element."""
    element = tirx.address_of(tirx.BufferLoad(buffer, [index]))
    return cuda_func_call(_ADDRESS, element, source_code=_ADDRESS_SOURCE, return_type="uint32")


def first(indices: list) -> tuple[Expr, int]:
    """(first element, number of elements) of a flat index."""
    (index,) = indices
    return (index.base, int(index.lanes)) if isinstance(index, tirx.Ramp) else (index, 1)
