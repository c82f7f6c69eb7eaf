"""What fits a multiprocessor: shared memory and registers of folded kernels, judged before they are built."""

from __future__ import annotations

from tvm.target import Target

# Accumulators of a thread at most; more spill.
ACCUMULATORS = 64
# Registers that a thread needs beside its accumulators: fewer than this and accumulators spill.
OTHER_REGISTERS = 14
# 32-bit registers of one of a multiprocessor's four parts, and how many a thread may have.
REGISTERS, MAX_REGISTERS = 16384, 255
# Shared memory of a multiprocessor by architecture, KiB (CUDA programming guide, compute capabilities).
_SHARED_KIB = {"sm_80": 164, "sm_86": 100, "sm_87": 164, "sm_89": 100, "sm_90": 228, "sm_100": 228, "sm_120": 100}
# What the driver keeps for itself of each block's shared memory, bytes.
_RESERVED = 1024


def shared_memory_bytes(target: Target) -> int:
    """Shared memory that all blocks of a multiprocessor have together; that of the smallest where it is not known."""
    arch = str(target.attrs["arch"]).rstrip("af") if "arch" in target.attrs else ""
    return 1024 * _SHARED_KIB.get(arch, min(_SHARED_KIB.values()))


def warps_a_part(threads: int) -> int:
    """Warps that a block of `threads` threads puts on the fullest of a multiprocessor's four parts."""
    return -(-threads // 128)


def blocks_default(threads: int, accumulators: int) -> int:
    """Thread blocks that a multiprocessor should hold at once: three at most, as registers allow without spills."""
    registers = warps_a_part(threads) * 32 * (accumulators + OTHER_REGISTERS)
    return min(max(REGISTERS // registers, 1), 3)


def refusal(threads: int, accumulators: int, blocks: int, shared_bytes: int, shared_limit: int) -> str:
    """Why a kernel is not worth building, or ""; `blocks` are the thread blocks that it wants on a multiprocessor."""
    available = REGISTERS // (warps_a_part(threads) * blocks * 32) // 8 * 8
    needed = accumulators + OTHER_REGISTERS
    if needed > min(available, MAX_REGISTERS):
        return f"{needed} registers a thread are needed and {available} there with {blocks} blocks of {threads} threads"
    if blocks * (shared_bytes + _RESERVED) > shared_limit:
        return f"{blocks} blocks need {blocks * shared_bytes} bytes of shared memory and there are {shared_limit}"
    return ""
