"""What schedules and code need to know of a CPU's vector unit, looked up by target."""

from dataclasses import dataclass

from tvm.target import Target
from tvm.target.codegen import target_has_features

# Vector registers by the floats that one holds: AVX-512, AVX2, and NEON (SSE has 16, and gains little either way).
REGISTERS = {16: 32, 8: 16, 4: 32}


@dataclass(frozen=True)
class CpuInfo:
    """A vector unit.

    Parameters
    ----------
    lanes
        Floats of a vector register.
    register_name
        What assembly calls a register, without its number; empty where kernels are not written in assembly.
    has_memory_broadcast
        Whether a multiply-add can broadcast an operand in memory.
    """

    lanes: int
    register_name: str = ""
    has_memory_broadcast: bool = False

    @property
    def registers(self) -> int:
        """How many vector registers there are."""
        return REGISTERS[self.lanes]

    @classmethod
    def of(cls, target: Target) -> "CpuInfo":
        """That of a target for LLVM; vectors of four floats where it is no x86-64 with AVX2."""
        if target_has_features("avx512f", target):
            return cls(16, "zmm", True)
        if target_has_features("avx2", target):
            return cls(8, "ymm" if target_has_features("fma", target) else "")
        return cls(4)
