"""Straight-line multiply-adds as assembly of x86-64 and AArch64, in the place of LLVM's own code for them.

A chain (`fma_chains`) is thousands of vector multiply-adds whose order and registers the schedule has
decided already. LLVM finds nothing left to optimise, and takes 0.3 ms for each, most of the time that a kernel takes to
build. So a chain becomes a function of LLVM IR that holds one block of assembly; TVM links it into the kernel's module
and inlines it. Products are added in the same order, so that results are the same to the last bit.
"""

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx import AttrStmt, Evaluate, IntImm, Stmt

from tvm_sparse.codegen.folding.aarch64 import NeonWriter
from tvm_sparse.codegen.folding.chain_writer import ChainWriter
from tvm_sparse.codegen.folding.fma_chains import Access, Chain
from tvm_sparse.codegen.folding.x86_64 import X86Writer
from tvm_sparse.codegen.tir.tir_builder import IMPORT, integer, nothing, sequence
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.target.cpu_info import CpuInfo

# Instruction sets, by what they call a register.
_WRITERS: dict[str, type[ChainWriter]] = {"zmm": X86Writer, "ymm": X86Writer, "v": NeonWriter}


class AssemblyChains:
    """The chains of the function `name`, written for the vector unit `cpu`."""

    def __init__(self, cpu: CpuInfo, name: str):
        self._cpu, self._name = cpu, name
        self._functions: list[str] = []
        self._most_vectors = cpu.registers - ChainWriter.SPARE_REGISTERS

    def takes(self, x: Access, acc: Access, lanes: int) -> bool:
        """Whether chains of such loads can be written: contiguous ones, of whole vectors, which fit the registers."""
        if not self._cpu.register_name or None in (_unit_floats(x, lanes), _unit_floats(acc, lanes)):
            return False
        vectors, rest = divmod(lanes, self._cpu.lanes)
        return rest == 0 and vectors <= self._most_vectors

    def call(self, chain: Chain, x: Access, acc: Access) -> Stmt:
        """The call of `chain` as assembly; of several parts where its accumulators are more than registers."""
        pointers = [tirx.address_of(tirx.BufferLoad(each.buffer, list(each.bases))) for each in (x, acc)]
        unit_floats = [_unit_floats(each, chain.lanes) or 0 for each in (x, acc)]
        calls: list[Stmt] = []
        for part in self._parts(chain):
            name = f"{self._name}_chain{len(self._functions)}"
            writer = _WRITERS[self._cpu.register_name](self._cpu, part, unit_floats)
            self._functions.append(_function(name, writer, self._cpu))
            calls.append(Evaluate(tirx.call_extern("int32", name, *pointers)))
        return sequence(calls) if calls else nothing()

    def _parts(self, chain: Chain) -> list[Chain]:
        """`chain` by its accumulators, neighbours together, so that those of each part fit the registers."""
        accumulators = sorted(set(chain.acc_offsets))
        most = self._most_vectors * self._cpu.lanes // chain.lanes
        count = -(-len(accumulators) // most)
        if count <= 1:
            return [chain] if accumulators else []
        size = -(-len(accumulators) // count)
        return [chain.of_accumulators(set(accumulators[i : i + size])) for i in range(0, len(accumulators), size)]

    def imported(self, body: Stmt) -> Stmt:
        """`body` with the functions that it calls."""
        if not self._functions:
            return body
        return AttrStmt(integer(0), IMPORT, StringImm("\n".join(self._functions)), body)


def _unit_floats(access: Access, lanes: int) -> int | None:
    """Floats that an offset of 1 skips; None where a load of `lanes` floats is not contiguous."""
    if len(access.bases) != 1 or not str(access.buffer.ty.dtype).startswith(FLOAT32):
        return None
    (ramp,), element_floats = access.ramps, tvm.DataType(str(access.buffer.ty.dtype)).lanes
    if ramp is None:
        # TVM has made an array of vectors of it; in memory LLVM pads those whose length is no power of two.
        return lanes if element_floats == lanes and lanes & (lanes - 1) == 0 else None
    has_unit_stride = isinstance(ramp.stride, IntImm) and int(ramp.stride) == 1
    return 1 if has_unit_stride and element_floats == 1 else None


def _function(name: str, writer: ChainWriter, cpu: CpuInfo) -> str:
    """LLVM IR of a function of pointers to inputs and accumulators."""
    # LLVM reads a float as the bits of the double of the same value.
    bits = np.asarray(writer.table, np.float32).astype(np.float64).view(np.uint64).tolist()
    kind, table = f"[{len(bits)} x float]", ", ".join(f"float 0x{each:016X}" for each in bits)
    changed = [*(f"{cpu.register_name}{index}" for index in range(cpu.registers)), *writer.SCRATCH]
    clobbers = ",".join(f"~{{{register}}}" for register in changed)
    code = "\\0A".join(writer.lines())
    return f"""
@{name}_weights = private unnamed_addr constant {kind} [{table}], align 64
define i32 @{name}(ptr %x, ptr %acc) {{
  call void asm sideeffect "{code}", "r,r,r,{clobbers},~{{memory}}"(ptr %x, ptr %acc, ptr @{name}_weights)
  ret i32 0
}}
"""
