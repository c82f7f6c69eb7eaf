"""Kernels for AArch64, run on this machine: Debian's cross compiler links them, QEMU emulates the processor."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import tvm_ffi

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "num-cores": 1}
# DLPack's codes of types, by NumPy's.
_CODES = {"i": 0, "u": 1, "f": 2}


def why_not_emulated() -> str:
    """The sentence that says what is missing here; empty where nothing is."""
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    packages = "gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user"
    return f"{' and '.join(missing)} not found; Debian's packages {packages} have them" if missing else ""


def call(built, arguments: list[np.ndarray], folder: Path) -> np.ndarray:
    """Call the kernel `built` with `arguments`, the last of which it writes; that one, as it is afterwards."""
    inputs, output = folder / "inputs", folder / "output"
    inputs.write_bytes(b"".join([np.int64(len(arguments)).tobytes(), *map(_tensor, arguments)]))
    program, include = str(folder / "program"), tvm_ffi.libinfo.find_include_path()
    built.write_to_file(str(folder / "kernel.o"), "o")
    sources = [str(Path(__file__).parent / "kernel_main.c"), str(folder / "kernel.o")]
    dlpack = tvm_ffi.libinfo.find_dlpack_include_path()
    _run([COMPILER, "-static", f"-I{include}", f"-I{dlpack}", *sources, "-lm", "-o", program])
    _run([EMULATOR, program, str(inputs), str(output)])
    return np.fromfile(output, arguments[-1].dtype).reshape(arguments[-1].shape)


def _tensor(values: np.ndarray) -> bytes:
    head = [values.ndim, _CODES[values.dtype.kind], values.itemsize * 8, *values.shape]
    return np.array(head, np.int64).tobytes() + np.ascontiguousarray(values).tobytes()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
