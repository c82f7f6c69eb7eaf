"""What the driver tells of the GPU that CUDA calls device 0."""

import os
import subprocess
import sys
from functools import lru_cache

# Prints device 0's PCI address and its multiprocessors (attribute 16), nothing where CUDA sees no device, and fails
# where there is no driver. In a process of its own: CUDA reads CUDA_VISIBLE_DEVICES once a process, and what is forked
# from one that has asked it cannot use it.
_DEVICE_0 = """
import ctypes
driver, device, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
address = ctypes.create_string_buffer(32)
if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
    driver.cuDeviceGetPCIBusId(address, len(address), device)
    driver.cuDeviceGetAttribute(ctypes.byref(count), 16, device)
    print(address.value.decode(), count.value)
"""


def gpu_arch() -> str | None:
    """Such as ``sm_90``; None where there is no GPU."""
    capability = gpu_property("compute_cap")
    return f"sm_{capability.replace('.', '')}" if capability else None


def gpu_model() -> str:
    """Name and number of multiprocessors, as the attribute ``model`` of a target has them; as far as they are told."""
    _, count = _device_0() or ("", 0)
    return (gpu_property("name") or "") + (f", {count} multiprocessors" if count else "")


def gpu_id() -> str:
    """The GPU's UUID; where the driver does not tell, what CUDA_VISIBLE_DEVICES calls device 0."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return gpu_property("uuid") or f"gpu-{visible or 0}"


@lru_cache(maxsize=8)
def gpu_property(field: str) -> str | None:
    """A property of the GPU that nvidia-smi can be asked for, None where there is no GPU.

    nvidia-smi orders GPUs by PCI address and CUDA does not, unless told so; CUDA_VISIBLE_DEVICES counts as CUDA does,
    or names GPUs, or parts of one. So CUDA is asked which GPU it means. Without CUDA it is nvidia-smi's first.
    """
    answer = _answer(["nvidia-smi", f"--query-gpu=pci.bus_id,{field}", "--format=csv,noheader"])
    rows = [line.partition(",")[::2] for line in (answer or "").splitlines()]
    device = _device_0()
    if device is not None:
        # nvidia-smi writes eight digits of the PCI domain, CUDA four.
        rows = [row for row in rows if row[0].lower().lstrip("0") == device[0].lower().lstrip("0")]
    return rows[0][1].strip() or None if rows else None


@lru_cache(maxsize=1)
def _device_0() -> tuple[str, int] | None:
    """PCI address and multiprocessors of CUDA's device 0; ("", 0) where CUDA sees none, None where there is no CUDA."""
    answer = _answer([sys.executable, "-c", _DEVICE_0])
    if answer is None:
        return None
    address, count = answer.split() or ("", "0")
    return address, int(count)


def _answer(command: list[str]) -> str | None:
    """What a command prints; None where it is not there, fails, or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
