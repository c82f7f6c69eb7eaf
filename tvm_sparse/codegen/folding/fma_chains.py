"""Straight-line multiply-adds, and when they are written.

A chain is what folding makes of one nest: each non-zero adds a product to an accumulator. On CPUs it is written at
once. On GPUs kernels have hundreds of thousands of multiply-adds, and passes that look at each of them would take most
of a build's time, `LowerIntrin` alone 80 us for each: there `Deferred` leaves a call with the two addresses and writes
the code after all other passes.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op
from tvm.tirx import Bind, BufferStore, Evaluate, FloatImm, Ramp, SeqStmt, Stmt, Var

from tvm_sparse.codegen.tir.index_offsets import shifted
from tvm_sparse.codegen.tir.tir_builder import function_pass, nothing

# A call in the place of a chain, with its number and a load each of the input and of the accumulators.
_CALL = "tvm_sparse_chain"
# Offsets in each dimension of a buffer.
Offsets = tuple[int, ...]


@dataclass(frozen=True)
class Access:
    """Elements of `buffer`: in each dimension offsets count from one of `bases`, for as many lanes as `ramps` say."""

    buffer: Var
    bases: list[Expr]
    ramps: list[Ramp | None]

    def indices(self, offsets: Offsets) -> list[Expr]:
        """The index expressions at `offsets`."""
        found = []
        for base, ramp, offset in zip(self.bases, self.ramps, offsets, strict=True):
            index = shifted(base, offset)
            found.append(index if ramp is None else Ramp(index, ramp.stride, ramp.lanes))
        return found

    def load(self, offsets: Offsets) -> Expr:
        """The element, or vector, at `offsets`."""
        return tirx.BufferLoad(self.buffer, self.indices(offsets))


@dataclass(frozen=True)
class Chain:
    """Multiply-adds in order: ``acc[acc_offsets[i]] += x[x_offsets[i]] * weights[i]``, of type `dtype`."""

    x_offsets: list[Offsets]
    acc_offsets: list[Offsets]
    weights: list[float]
    dtype: tvm.ir.Type
    lanes: int

    @classmethod
    def of(
        cls, weights: np.ndarray, x: list[np.ndarray], acc: list[np.ndarray], dtype: tvm.ir.Type, lanes: int
    ) -> "Chain":
        """The non-zeros of `weights`, one value a point of the nest; `x` and `acc` are offsets that broadcast to it."""
        points = np.nonzero(weights)

        def offsets(dimensions: list[np.ndarray]) -> list[Offsets]:
            chosen = (np.broadcast_to(each, weights.shape)[points] for each in dimensions)
            return list(zip(*(each.tolist() for each in chosen), strict=True))

        return cls(offsets(x), offsets(acc), weights[points].tolist(), dtype, lanes)

    def of_accumulators(self, chosen: set[Offsets]) -> "Chain":
        """The multiply-adds into the accumulators at the offsets `chosen`, in the same order."""
        entries = zip(self.x_offsets, self.acc_offsets, self.weights, strict=True)
        x, acc, weights = map(list, zip(*(each for each in entries if each[1] in chosen), strict=True))
        return Chain(x, acc, weights, self.dtype, self.lanes)

    def code(self, x: Access, acc: Access) -> Stmt:
        """Every input is loaded once, every accumulator loaded and stored once, and each value bound once."""
        first, chain = [], []
        inputs: dict[Offsets, Var] = {}
        last: dict[Offsets, Var] = {}
        for x_at, acc_at, weight in zip(self.x_offsets, self.acc_offsets, self.weights, strict=True):
            value = inputs.get(x_at)
            if value is None:
                value = inputs[x_at] = Var("x", self.dtype)
                loaded = x.load(x_at)
                is_stored_so = str(loaded.ty.dtype) == str(self.dtype.dtype)
                chain.append(Bind(value, loaded if is_stored_so else tirx.Cast(self.dtype.dtype, loaded)))
            before = last.get(acc_at)
            if before is None:
                before = Var("acc", self.dtype)
                first.append(Bind(before, acc.load(acc_at)))
            immediate = FloatImm("float32", weight)
            if self.lanes > 1:
                immediate = tirx.Broadcast(immediate, self.lanes)
            total = last[acc_at] = Var("acc", self.dtype)
            chain.append(Bind(total, tirx.Add(before, tirx.Mul(value, immediate))))
        if not last:
            return nothing()
        stores = [BufferStore(acc.buffer, value, acc.indices(offsets)) for offsets, value in last.items()]
        return SeqStmt(first + chain + stores)


class Code(Protocol):
    """What is written in the place of a nest."""

    def code(self, x: Access, acc: Access) -> Stmt:
        """Reads inputs from `x` and adds products to `acc`."""


class Deferred:
    """Chains of one module that are written after all other passes."""

    def __init__(self) -> None:
        self._chains: list[Code] = []

    def call(self, chain: Code, x: Access, acc: Access) -> Stmt:
        """What stands for `chain` until `write_pass`."""
        self._chains.append(chain)
        loads = [access.load((0,) * len(access.bases)) for access in (x, acc)]
        return Evaluate(tirx.call_extern("int32", _CALL, len(self._chains) - 1, *loads))

    def write_pass(self) -> tvm.transform.Pass:
        """The pass WriteChains."""
        extern = Op.get("tirx.call_extern")

        def write(node: Evaluate) -> Stmt:
            call = node.value
            if not (isinstance(call, Call) and call.op.same_as(extern) and call.args[0].value == _CALL):
                return node
            x, acc = (Access(load.source, list(load.indices), [None] * len(load.indices)) for load in call.args[2:])
            return self._chains[int(call.args[1])].code(x, acc)

        def write_all(func: tirx.PrimFunc) -> tirx.PrimFunc:
            body = tvm_ffi.structural_map(func.body, (Evaluate, write), order="post")
            return func if body.same_as(func.body) else func.with_body(body)

        return function_pass("WriteChains")(write_all)
