"""Multiply-adds of two neighbouring outputs at a time, in float16: ``HFMA2``, with the weight as an immediate.

Of every two outputs the inputs lie side by side too, so both are one 32-bit number, as are both sums: two instructions'
work is one, and so is its code. Products are added up in blocks (blocked summation: Higham, Accuracy and Stability of
Numerical Algorithms, section 4.2), as one float16 sum of all would lose more with every product: a *sum* takes `BLOCK`
products, then it is added to the *total* and begins anew. A nest goes on with the sum that the nest before it left, but
for the first, which begins one: blocks of threads that begin with another come to it in the middle
(`conv.error_bounds.half_sums` bounds the error).

The float32 accumulators of two outputs are registers for the total and the sum, as bits; `totals` replaces what reads
them behind all nests. Float32 totals would take half as many registers again: such kernels held fewer warps, and
operator 10 at batch 64 took 373 us.

Two inputs at an even address are read at once. At an odd one each is half of a pair that is: a byte permutation puts
them together.
"""

from dataclasses import dataclass, field

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Expr, TensorLoad
from tvm.tirx import Bind, BufferStore, Ramp, Stmt, Var

from tvm_sparse.codegen.folding.fma_chains import Access, Chain, Offsets
from tvm_sparse.codegen.tir.tir_builder import nothing, sequence
from tvm_sparse.conv.error_bounds import HALF_SUMS_BLOCK as BLOCK

_WORD = "uint32"
_FUNCTION = "__forceinline__ __device__ {type} tvm_sparse_{name}({parameters}) {{\n  {body}\n}}\n"


def _assembly(name: str, *operands: str) -> str:
    places = ", ".join(f"%{i}" for i in range(len(operands) + 1))
    inputs = ", ".join(f'"r"({each})' for each in operands)
    return f'uint y; asm("{name}.rn.f16x2 {places};" : "=r"(y) : {inputs}); return __uint_as_float(y);'


# Return type, parameters and body by name. Sums and totals are bits in float registers.
_FUNCTIONS = {
    "pair": ("uint", "const half* first", "return *(const uint*)first;"),
    "between": ("uint", "uint before, uint after", "return __byte_perm(before, after, 0x5432);"),
    "multiply_add": ("float", "uint x, uint w, float sum", _assembly("fma", "x", "w", "__float_as_uint(sum)")),
    "product": ("float", "uint x, uint w", _assembly("mul", "x", "w")),
    "add_sum": ("float", "float total, float sum", _assembly("add", "__float_as_uint(total)", "__float_as_uint(sum)")),
    "outputs": (
        "float2",
        "float total, float sum",
        "const uint t = __float_as_uint(total), s = __float_as_uint(sum);\n"
        "  const half2 a = *(const half2*)&t, b = *(const half2*)&s;\n"
        "  return make_float2(__low2float(a) + __low2float(b), __high2float(a) + __high2float(b));",
    ),
}
_TYPES = {"uint": _WORD, "float": "float32", "float2": "float32x2"}


def _call(name: str, *arguments: Expr) -> Expr:
    kind, parameters, body = _FUNCTIONS[name]
    source = _FUNCTION.format(type=kind, name=name, parameters=parameters, body=body)
    return cuda_func_call(f"tvm_sparse_{name}", *arguments, source_code=source, return_type=_TYPES[kind])


def totals(stmt: Stmt, accumulators: Var) -> Stmt:
    """`stmt` with what is read two by two of the accumulators replaced by what their totals and sums are."""

    def read(load: TensorLoad) -> Expr:
        index = load.indices[-1]
        if not load.source.same_as(accumulators) or not isinstance(index, Ramp):
            return load
        bits = (tirx.BufferLoad(load.source, [*load.indices[:-1], index.base + i]) for i in range(2))
        return _call("outputs", *bits)

    return tvm_ffi.structural_map(stmt, (TensorLoad, read), order="post")


@dataclass(frozen=True)
class HalfSums:
    """A chain whose multiply-adds come in pairs, of two neighbouring inputs and accumulators with one weight.

    `is_odd`: input elements at offset 0 have odd addresses. `begins`: of each pair, whether its product begins a block.
    """

    chain: Chain
    is_odd: bool
    begins: list[bool]

    @classmethod
    def after(cls, products: dict[int, int], first: int, chain: Chain, is_odd: bool) -> "HalfSums":
        """The chain behind those that left so many `products` in the sums, which are counted on.

        Accumulators are counted by their number, that at offset 0 being the `first`.
        """
        begins = []
        for acc_at in chain.acc_offsets[::2]:
            place = first + acc_at[-1]
            count = products.get(place, BLOCK)
            begins.append(count == BLOCK)
            products[place] = count % BLOCK + 1
        return cls(chain, is_odd, begins)

    def code(self, x: Access, acc: Access) -> Stmt:
        """Every input is read once, totals and sums are loaded and stored once, and each value is bound once."""
        chain = self.chain
        if not chain.weights:
            return nothing()
        writer = _Writer(self.is_odd, x, acc)
        pairs = (each[::2] for each in (chain.x_offsets, chain.acc_offsets, chain.weights))
        for x_at, acc_at, weight, begins in zip(*pairs, self.begins, strict=True):
            writer.add(x_at, acc_at, weight, begins)
        return writer.code()

    @staticmethod
    def are_pairs(chain: Chain) -> bool:
        """Whether a chain is as this class takes it."""

        def are_neighbours(offsets: list[Offsets]) -> bool:
            pairs = zip(offsets[::2], offsets[1::2], strict=True)
            return all((*one[:-1], one[-1] + 1) == other for one, other in pairs)

        if len(chain.weights) % 2 or chain.lanes > 1:
            return False
        same = chain.weights[::2] == chain.weights[1::2]
        return same and are_neighbours(chain.x_offsets) and are_neighbours(chain.acc_offsets)


@dataclass
class _Writer:
    """Writes one chain."""

    is_odd: bool
    x: Access
    acc: Access
    first: list[Stmt] = field(default_factory=list)
    lines: list[Stmt] = field(default_factory=list)
    inputs: dict[Offsets, Var] = field(default_factory=dict)
    # By the place of the first of two outputs' accumulators: total and sum.
    sums: dict[Offsets, list[Var]] = field(default_factory=dict)

    def add(self, x_at: Offsets, acc_at: Offsets, weight: float, begins: bool) -> None:
        """One product of each of two outputs, which `begins` a block or not."""
        value = self._inputs(x_at)
        if acc_at not in self.sums:
            self.sums[acc_at] = [self._accumulator(_next(acc_at, i)) for i in range(2)]
        bits = int(np.float16(weight).view(np.uint16))
        immediate = tirx.const(bits << 16 | bits, _WORD)
        total, running = self.sums[acc_at]
        if begins:
            total = self._bound("total", _call("add_sum", total, running), "float32")
            running = self._bound("sum", _call("product", value, immediate), "float32")
        else:
            running = self._bound("sum", _call("multiply_add", value, immediate, running), "float32")
        self.sums[acc_at] = [total, running]

    def code(self) -> Stmt:
        """All that was added, and the accumulators stored."""
        stores = [
            BufferStore(self.acc.buffer, value, self.acc.indices(_next(at, i)))
            for at, found in self.sums.items()
            for i, value in enumerate(found)
        ]
        return sequence([*self.first, *self.lines, *stores])

    def _accumulator(self, at: Offsets) -> Var:
        value = Var("acc", "float32")
        self.first.append(Bind(value, self.acc.load(at)))
        return value

    def _inputs(self, at: Offsets) -> Var:
        """The two inputs from an offset on."""
        if at not in self.inputs:
            if (at[-1] + self.is_odd) % 2:
                value = _call("between", self._inputs(_next(at, -1)), self._inputs(_next(at, 1)))
            else:
                value = _call("pair", tirx.address_of(self.x.load(at)))
            self.inputs[at] = self._bound("x", value)
        return self.inputs[at]

    def _bound(self, name: str, value: Expr, dtype: str = _WORD) -> Var:
        made = Var(name, dtype)
        self.lines.append(Bind(made, value))
        return made


def _next(at: Offsets, by: int) -> Offsets:
    return (*at[:-1], at[-1] + by)
