"""Straight-line multiply-adds as assembly of x86-64, in the place of LLVM's own code for them.

A chain (`codegen.tir.fma_chains`) is thousands of vector multiply-adds whose order and registers the schedule has
decided already. LLVM finds nothing left to optimise, and takes 0.3 ms for each, most of the time that a kernel takes to
build. So a chain becomes a function of LLVM IR that holds one block of assembly; TVM links it into the kernel's module
and inlines it. Products are added in the same order, so that results are the same to the last bit.

Accumulators stay in registers from the chain's first product to its last. Weights are read from a table in the order of
use, each once for all vectors that it multiplies. Inputs are operands in memory unless one is used again soon.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx import AttrStmt, Evaluate, IntImm, Stmt

from tvm_sparse.codegen.tir.fma_chains import Access, Chain, Offsets
from tvm_sparse.codegen.tir.tir_builder import integer, nothing, sequence
from tvm_sparse.target.cpu_info import CpuInfo

# TVM's attribute for LLVM IR that is linked into the module around it, its functions inlined.
_IMPORT = "pragma_import_llvm"
_FLOAT_BYTES = 4
# An input that is used again within so many multiply-adds is kept in a register, where one is free.
_WINDOW = 64
# Registers that a chain needs beside its accumulators: for a weight, and for an input.
_SPARE_REGISTERS = 2

# A native vector: the offsets of a load or store, which is wider, and the vector's number in that.
Vector = tuple[Offsets, int]


class AssemblyChains:
    """The chains of the function `name`, written for the vector unit `cpu`."""

    def __init__(self, cpu: CpuInfo, name: str):
        self._cpu, self._name = cpu, name
        self._functions: list[str] = []

    def takes(self, x: Access, acc: Access, lanes: int) -> bool:
        """Whether chains of such loads can be written: contiguous ones, of whole vectors."""
        is_contiguous = None not in (_unit_floats(x, lanes), _unit_floats(acc, lanes))
        return bool(self._cpu.register_name) and is_contiguous and lanes % self._cpu.lanes == 0

    def call(self, chain: Chain, x: Access, acc: Access) -> Stmt:
        """The call of `chain` as assembly; of several parts where its accumulators are more than registers."""
        pointers = [tirx.address_of(tirx.BufferLoad(each.buffer, list(each.bases))) for each in (x, acc)]
        unit_floats = [_unit_floats(each, chain.lanes) or 0 for each in (x, acc)]
        calls: list[Stmt] = []
        for part in self._parts(chain):
            name = f"{self._name}_chain{len(self._functions)}"
            lines = _Writer(self._cpu, part, unit_floats).lines()
            self._functions.append(_function(name, lines, part.weights, self._cpu))
            calls.append(Evaluate(tirx.call_extern("int32", name, *pointers)))
        return sequence(calls) if calls else nothing()

    def _parts(self, chain: Chain) -> list[Chain]:
        """`chain` by its accumulators, neighbours together, so that those of each part fit the registers."""
        accumulators = sorted(set(chain.acc_offsets))
        vectors = chain.lanes // self._cpu.lanes
        most = max(1, (self._cpu.registers - _SPARE_REGISTERS) // vectors)
        count = -(-len(accumulators) // most)
        if count <= 1:
            return [chain] if accumulators else []
        size = -(-len(accumulators) // count)
        return [chain.of_accumulators(set(accumulators[i : i + size])) for i in range(0, len(accumulators), size)]

    def imported(self, body: Stmt) -> Stmt:
        """`body` with the functions that it calls."""
        if not self._functions:
            return body
        return AttrStmt(integer(0), _IMPORT, StringImm("\n".join(self._functions)), body)


def _unit_floats(access: Access, lanes: int) -> int | None:
    """Floats that an offset of 1 skips; None where a load of `lanes` floats is not contiguous."""
    if len(access.bases) != 1:
        return None
    (ramp,), element_floats = access.ramps, tvm.DataType(str(access.buffer.ty.dtype)).lanes
    if ramp is None:
        # TVM has made an array of vectors of it.
        return lanes if element_floats == lanes else None
    has_unit_stride = isinstance(ramp.stride, IntImm) and int(ramp.stride) == 1
    return 1 if has_unit_stride and element_floats == 1 else None


def _function(name: str, lines: Sequence[str], weights: Sequence[float], cpu: CpuInfo) -> str:
    """LLVM IR of a function of pointers to inputs and accumulators."""
    # LLVM reads a float as the bits of the double of the same value.
    bits = np.asarray(weights, np.float32).astype(np.float64).view(np.uint64).tolist()
    kind, table = f"[{len(bits)} x float]", ", ".join(f"float 0x{each:016X}" for each in bits)
    clobbers = ",".join(f"~{{{cpu.register_name}{index}}}" for index in range(cpu.registers))
    code = "\\0A".join(lines)
    return f"""
@{name}_weights = private unnamed_addr constant {kind} [{table}], align 64
define i32 @{name}(ptr %x, ptr %acc) {{
  call void asm sideeffect "{code}", "r,r,r,{clobbers},~{{memory}}"(ptr %x, ptr %acc, ptr @{name}_weights)
  ret i32 0
}}
"""


@dataclass(frozen=True)
class _Product:
    """One multiply-add: its place in the chain, the number of its weight, what is used, the place of x's next use."""

    index: int
    weight: int
    x: Vector
    acc: Vector
    next_use: float


class _Writer:
    """Gives registers to the values of one chain and writes its instructions.

    Operands 0, 1 and 2 of the assembly are pointers to inputs, accumulators and weights; `unit_floats` is what an
    offset of 1 skips in the first two.
    """

    def __init__(self, cpu: CpuInfo, chain: Chain, unit_floats: Sequence[int]):
        self._cpu, self._values, self._unit_floats = cpu, chain.weights, unit_floats
        parts = range(chain.lanes // cpu.lanes)
        registers = [f"%{cpu.register_name}{index}" for index in range(cpu.registers)]
        vectors = [(offsets, part) for offsets in dict.fromkeys(chain.acc_offsets) for part in parts]
        self._accumulators = dict(zip(vectors, registers, strict=False))
        self._factor, *self._free = registers[len(vectors) :]
        self._held: dict[Vector, str] = {}
        ends = enumerate(zip(chain.x_offsets, chain.acc_offsets, strict=True))
        self._products = _with_next_uses([(number, (x, i), (acc, i)) for number, (x, acc) in ends for i in parts])

    def lines(self) -> list[str]:
        """Accumulators in, products, accumulators out."""
        places = [(self._place(vector, 1), register) for vector, register in self._accumulators.items()]
        first = [f"vmovups {place}, {register}" for place, register in places]
        last = [f"vmovups {register}, {place}" for place, register in places]
        return [*first, *self._multiply_adds(), *last]

    def _multiply_adds(self) -> Iterator[str]:
        for _, run in groupby(self._products, lambda product: self._values[product.weight]):
            products = list(run)
            for product in products:
                if product.x not in self._held and self._is_kept(product) and self._free:
                    register = self._held[product.x] = self._free.pop()
                    yield f"vmovups {self._place(product.x, 0)}, {register}"
            weight = f"{products[0].weight * _FLOAT_BYTES}($2)"
            if self._cpu.has_memory_broadcast and len(products) == 1 and products[0].x in self._held:
                factor = f"{weight}{{1to{self._cpu.lanes}}}"
            else:
                factor = self._factor
                yield f"vbroadcastss {weight}, {factor}"
            for product in products:
                x = self._held.get(product.x)
                # Only the first of the three operands may be in memory.
                operands = (factor, x) if x is not None else (self._place(product.x, 0), factor)
                yield f"vfmadd231ps {operands[0]}, {operands[1]}, {self._accumulators[product.acc]}"
                if x is not None and not self._is_kept(product):
                    self._free.append(self._held.pop(product.x))

    def _is_kept(self, product: _Product) -> bool:
        return product.next_use - product.index <= _WINDOW

    def _place(self, vector: Vector, pointer: int) -> str:
        offsets, part = vector
        floats = offsets[0] * self._unit_floats[pointer] + part * self._cpu.lanes
        return f"{floats * _FLOAT_BYTES}(${pointer})"


def _with_next_uses(products: Sequence[tuple[int, Vector, Vector]]) -> list[_Product]:
    """Numbers of weights, inputs and accumulators as products."""
    found, later = [], dict[Vector, int]()
    for index, (weight, x, acc) in reversed(list(enumerate(products))):
        found.append(_Product(index, weight, x, acc, later.get(x, float("inf"))))
        later[x] = index
    return found[::-1]
