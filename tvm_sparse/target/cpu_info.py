"""What schedules and code need to know of a CPU's vector unit, looked up by target."""

from dataclasses import dataclass

from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_archlist, target_has_features

from tvm_sparse.target.resolve import is_architecture

# Vector registers by the floats that one holds: AVX-512, AVX2, and NEON (SSE has 16, and gains little either way).
REGISTERS = {16: 32, 8: 16, 4: 32}
# Of a line of a cache, and floats in it.
LINE_BYTES, LINE = 64, 16
# Sums that hide a multiply-add's latency: two begin in a cycle, and one takes four.
HIDING_SUMS = 8


@dataclass(frozen=True)
class CpuInfo:
    """A vector unit.

    * `lanes`: floats of a vector register.
    * `register_name`: what assembly calls a register, without its number; empty where kernels are not written in
      assembly.
    * `has_memory_broadcast`: whether a multiply-add can broadcast an operand in memory.
    """

    lanes: int
    register_name: str = ""
    has_memory_broadcast: bool = False

    @property
    def registers(self) -> int:
        """How many vector registers there are."""
        return REGISTERS[self.lanes]

    @property
    def has_many_registers(self) -> bool:
        """Whether they hold the sums of four vectors beside the pixels of a tile."""
        return self.registers >= 32

    @property
    def has_block_kernels(self) -> bool:
        """Whether kernels of tensors in blocks of channels were measured on such: AVX-512 and AVX2."""
        return self.lanes >= 8

    def tile_pixels(self, vectors: int, spare: int = 0) -> int:
        """Pixels of a register tile by so many `vectors` of filters at most.

        Their sums fit the registers beside the weights, a pixel where no multiply-add can broadcast it, and as many as
        are to be `spare`.
        """
        return (self.registers - vectors - max(spare, not self.has_memory_broadcast)) // vectors

    @classmethod
    def of(cls, target: Target) -> "CpuInfo":
        """That of a target for LLVM; vectors of four floats where it is neither AArch64 nor x86-64 with AVX2."""
        if target_has_features("avx512f", target):
            return cls(16, "zmm", True)
        if target_has_features("avx2", target):
            return cls(8, "ymm" if target_has_features("fma", target) else "")
        return cls(4, "v" if target_has_features("neon", target) and is_aarch64(target) else "")

    @classmethod
    def of_processor(cls, mcpu: str, machine: str) -> "CpuInfo | None":
        """That of the processor which LLVM calls `mcpu`, of the architecture `machine`; None where it lists none."""
        if not is_architecture(machine):
            return None
        config = {"kind": "llvm", "mtriple": f"{machine}-linux-gnu"}
        is_known = mcpu in llvm_get_cpu_archlist(Target(config))
        return cls.of(Target({**config, "mcpu": mcpu})) if is_known else None


def is_aarch64(target: Target) -> bool:
    """Whether it has 64-bit registers: 32-bit ARM has NEON too, and half as many."""
    return bool(target.attrs.get("feature.is_aarch64", False))
