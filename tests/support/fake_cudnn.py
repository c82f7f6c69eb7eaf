"""A cuDNN made of C that computes on the host: `fake_cudnn.c`, compiled, and what it notes."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import tvm

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.cudnn.library import NAME, Library
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.target.resolve import resolve_target

VERSION = "9.19.0"
SOURCE = Path(__file__).with_name("fake_cudnn.c")
# Its function runs on the host too: a call from C is the same whatever the target. LLVM's optimiser takes most of the
# time and changes nothing that is looked at.
HOST = resolve_target('{"kind":"llvm","num-cores":1,"opt-level":0}')


def compiled(folder: Path) -> Path:
    """The library in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wno-unused", "-o", path, SOURCE], check=True)
    return path


class FakeCudnn:
    """The loaded library."""

    def __init__(self, path: Path):
        self.functions = ctypes.CDLL(str(path))
        self.functions.fake_notes.restype = ctypes.c_char_p
        self.functions.fake_want_workspace.argtypes = [ctypes.c_size_t]
        self.library = Library(path, VERSION, self.functions)

    def calls(self) -> list[tuple[str, int]]:
        """What was launched since `reset`, by function without ``cudnn``, and on which stream."""
        lines = self.functions.fake_notes().decode().splitlines()
        return [(name, int(stream)) for name, _, stream in (line.partition(" ") for line in lines) if stream]

    def names(self) -> list[str]:
        """Functions alone."""
        return [name for name, _ in self.calls()]

    def created(self) -> int:
        """Handles and descriptors made so far."""
        return self.functions.fake_created()

    def rank(self) -> int:
        """Which of its four suggestions computed last, of which the second is an FFT."""
        return self.functions.fake_rank()

    def reset(self) -> None:
        """Forget notes and failures."""
        self.functions.fake_reset()

    def fail(self, name: str, status: int) -> None:
        """Make a function fail from now on."""
        self.functions.fake_fail(name.encode(), status)

    def want_workspace(self, size_bytes: int) -> None:
        """Make convolutions need so much."""
        self.functions.fake_want_workspace(size_bytes)


def host_module(kernel: Kernel) -> tvm.runtime.Module:
    """The kernel built for the host."""
    return lowering.build(kernel.func, HOST)


def run(kernel: Kernel, spec, arguments: dict[str, np.ndarray], module=None) -> np.ndarray:
    """A kernel's output on the host, NaN where it wrote nothing."""
    y = tvm.runtime.tensor(np.full(spec.output_shape, np.nan, spec.dtype))
    values = (arguments["x"], *kernel.constants, *(arguments[n] for n in ("bias", "residual") if n in arguments))
    (module or host_module(kernel))["main"](*map(tvm.runtime.tensor, values), y)
    return y.numpy()


def worst(kernel: Kernel, spec, weight: np.ndarray, arithmetic: str, seed: int = 0, integers: bool = False) -> float:
    """Largest error of a kernel on the host as a fraction of its bound."""
    arguments = reference.random_arguments(spec, seed, integers)
    expected = reference.reference(spec, weight=weight, **arguments)
    return expected.within(arithmetic, weight).worst(run(kernel, spec, arguments))
