"""Multiply-adds of two neighbouring outputs at a time, in float16: ``HFMA2``, with the weight as an immediate.

Of every two outputs the inputs lie side by side too, so both are one 32-bit number, as are both sums. Two instructions'
work is one, and so is its code. A sum in float16 is added to its float32 accumulators after `PRODUCTS` products at
most, and at the end: two conversions and two additions. Its error is that of so many roundings to float16
(`conv.reference`).

Two inputs at an even address are read at once. At an odd one each is half of a pair that is: a byte permutation puts
them together.
"""

from dataclasses import dataclass, field

import numpy as np
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx import Bind, BufferStore, Stmt, Var

from tvm_sparse.codegen.tir.fma_chains import Access, Chain, Offsets
from tvm_sparse.codegen.tir.tir_builder import nothing, sequence
from tvm_sparse.conv.reference import HALF_SUMS_PRODUCTS as PRODUCTS

_WORD = "uint32"
_FUNCTION = "__forceinline__ __device__ {type} tvm_sparse_{name}({parameters}) {{\n  {body}\n}}\n"
_ASSEMBLY = {
    "product": (
        "uint",
        "uint x, uint w",
        'uint y; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(w)); return y;',
    ),
    "multiply_add": (
        "uint",
        "uint x, uint w, uint sum",
        'uint y; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(w), "r"(sum)); return y;',
    ),
    "pair": ("uint", "const half* first", "return *(const uint*)first;"),
    "between": ("uint", "uint before, uint after", "return __byte_perm(before, after, 0x5432);"),
    **{
        name: (
            "float",
            "uint pair",
            f'float y; asm("{{.reg .f16 low, high; mov.b32 {{low, high}}, %1; cvt.f32.f16 %0, {name};}}" '
            ': "=f"(y) : "r"(pair)); return y;',
        )
        for name in ("low", "high")
    },
}


def _call(name: str, *arguments: tirx.Expr) -> tirx.Expr:
    kind, parameters, body = _ASSEMBLY[name]
    source = _FUNCTION.format(type=kind, name=name, parameters=parameters, body=body)
    returned = _WORD if kind == "uint" else "float32"
    return cuda_func_call(f"tvm_sparse_{name}", *arguments, source_code=source, return_type=returned)


@dataclass(frozen=True)
class HalfSums:
    """A chain whose multiply-adds come in pairs, of two neighbouring inputs and accumulators with one weight.

    `is_odd`: input elements at offset 0 have odd addresses.
    """

    chain: Chain
    is_odd: bool

    def code(self, x: Access, acc: Access) -> Stmt:
        """Every input is read once, every accumulator loaded and stored once, and each value bound once."""
        chain = self.chain
        if not chain.weights:
            return nothing()
        writer = _Writer(self.is_odd, x, acc)
        for x_at, acc_at, weight in zip(chain.x_offsets[::2], chain.acc_offsets[::2], chain.weights[::2], strict=True):
            writer.add(x_at, acc_at, weight)
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
class _Sum:
    """Of two outputs: accumulators in float32, and products in float16 that are not in them yet."""

    accumulators: list[Var]
    pair: Var | None = None
    products: int = 0


@dataclass
class _Writer:
    """Writes one chain."""

    is_odd: bool
    x: Access
    acc: Access
    first: list[Stmt] = field(default_factory=list)
    lines: list[Stmt] = field(default_factory=list)
    inputs: dict[Offsets, Var] = field(default_factory=dict)
    sums: dict[Offsets, _Sum] = field(default_factory=dict)

    def add(self, x_at: Offsets, acc_at: Offsets, weight: float) -> None:
        """One product of each of two outputs."""
        value, found = self._inputs(x_at), self.sums.get(acc_at)
        if found is None:
            found = self.sums[acc_at] = _Sum([self._accumulator(each) for each in (acc_at, _next(acc_at, 1))])
        bits = int(np.float16(weight).view(np.uint16))
        immediate = tirx.const(bits << 16 | bits, _WORD)
        if found.pair is None:
            found.pair = self._bound("sum", _call("product", value, immediate))
        else:
            found.pair = self._bound("sum", _call("multiply_add", value, immediate, found.pair))
        found.products += 1
        if found.products == PRODUCTS:
            self._flush(found)

    def code(self) -> Stmt:
        """All that was added, and the accumulators stored."""
        stores = []
        for at, found in self.sums.items():
            self._flush(found)
            for offset, value in enumerate(found.accumulators):
                stores.append(BufferStore(self.acc.buffer, value, self.acc.indices(_next(at, offset))))
        return sequence([*self.first, *self.lines, *stores])

    def _flush(self, found: _Sum) -> None:
        if found.pair is not None:
            found.accumulators = [
                self._bound("acc", tirx.Add(before, _call(half, found.pair)), "float32")
                for before, half in zip(found.accumulators, ("low", "high"), strict=True)
            ]
        found.pair, found.products = None, 0

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

    def _bound(self, name: str, value: tirx.Expr, dtype: str = _WORD) -> Var:
        made = Var(name, dtype)
        self.lines.append(Bind(made, value))
        return made


def _next(at: Offsets, by: int) -> Offsets:
    return (*at[:-1], at[-1] + by)
