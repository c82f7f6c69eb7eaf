"""Nvidia-smi, compute capability, SMs, registers, shared memory, clusters, PDL: every device."""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from typing import TYPE_CHECKING

from tvm.target import Target

if TYPE_CHECKING:
    from tvm.target import Target

# Shared memory of a multiprocessor by compute capability, KiB (CUDA programming guide, compute capabilities).
_SHARED_KIB = {80: 164, 86: 100, 87: 164, 89: 100, 90: 228, 100: 228, 120: 100}
# The card: multiprocessors, their clock, bytes of DRAM and flops a second.
MULTIPROCESSORS, CLOCK_HZ = 132, 1.9e9
# Shared memory of a multiprocessor and what the driver takes of each block's, bytes (compute capability 9.0 and 10.0).
SHARED_BYTES, RESERVED_BYTES, UNIT_BYTES = 228 * 1024, 1024, 128


def shared_memory_bytes(target: Target) -> int:
    """Shared memory that all blocks of a multiprocessor have together; that of the smallest where it is not known."""
    return 1024 * _SHARED_KIB.get(compute_capability(target), min(_SHARED_KIB.values()))


def has_clusters(target: Target) -> bool:
    """Whether a GPU runs clusters of thread blocks: compute capability 9.0 or later."""
    return compute_capability(target) >= 90


def gpu_arch() -> str | None:
    capability = gpu_property("compute_cap")
    return f"sm_{capability.replace('.', '')}" if capability else None


def compute_capability(target: Target) -> int:
    """Of a CUDA target, 90 for ``sm_90a``; 0 where its architecture is not known."""
    arch = str(target.attrs["arch"]) if "arch" in target.attrs else ""
    number = arch.removeprefix("sm_").rstrip("af")
    return int(number) if number.isdigit() else 0


def gpu_id() -> str:
    """The UUID of the GPU that this process uses; what CUDA_VISIBLE_DEVICES says where the driver does not tell."""
    return gpu_property("uuid") or f"gpu-{_visible_gpu() or 0}"


def _visible_gpu() -> str:
    """The first of CUDA_VISIBLE_DEVICES, which CUDA calls device 0; empty where it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()


@lru_cache(maxsize=4)
def gpu_property(field: str) -> str | None:
    """One property of the first GPU; None where there is none. Asks the driver's tool, so no CUDA context is made."""
    try:
        command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
        if _visible_gpu():
            command.append(f"--id={_visible_gpu()}")
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.strip().splitlines()
    return lines[0].strip() if answer.returncode == 0 and lines else None


def overlaps(target: Target) -> bool:
    """Whether the kernels of a target start early."""
    return target.kind.name == "cuda" and compute_capability(target) >= 90


def spread_bytes(blocks: int) -> int:
    """Shared memory with which a multiprocessor holds its share of so many thread blocks, and no more."""
    share = -(-blocks // MULTIPROCESSORS)
    too_many = SHARED_BYTES // (share + 1) // UNIT_BYTES * UNIT_BYTES + UNIT_BYTES
    return max(0, too_many - RESERVED_BYTES)
