"""Kernels for another processor, called under QEMU: so they are verified where this machine cannot run them.

A call is a plan of one step, which the C library of exported models runs.
"""

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse.errors import BuildError, last_line
from tvm_sparse.exporter import SOURCES, plan_file
from tvm_sparse.exporter.plan import Base, Plan, Step, Tensor
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.runtime.library_file import export
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.resolve import architecture_of

# For one kernel: emulated code takes some fifty times as long.
TIMEOUT_S = 600


def why_not_emulated(target: Target) -> str:
    """Why code for `target`, which this machine cannot run, is not emulated here, as a sentence; empty where it is."""
    architecture, obstacle = architecture_of(target), why_not_here(target)
    if target.kind.name != "llvm" or architecture == platform.machine():
        return obstacle
    lacking = [each for each in (_compiler(architecture), _emulator(architecture)) if shutil.which(each) is None]
    packages = f"gcc-{architecture}-linux-gnu and qemu-user"
    return f"{obstacle}, without {' and '.join(lacking)} (Debian's {packages})" if lacking else ""


def _compiler(architecture: str) -> str:
    return f"{architecture}-linux-gnu-gcc"


def _emulator(architecture: str) -> str:
    return f"qemu-{architecture}"


@contextmanager
def emulated(executable: Any, target: Target) -> Iterator[Callable[[str], Callable[..., None]]]:
    """What gives a function of a compiled model by its name; it writes the last of the tensors that it takes.

    BuildError where it cannot be linked, or a call fails.
    """
    architecture = architecture_of(target)
    with TemporaryFolder() as folder:
        library, program = folder / "model.so", folder / "main"
        try:
            export(executable, library, architecture=architecture)
        except RuntimeError as error:
            raise BuildError("model.so", f"cannot be linked ({last_line(error)})") from error
        sources = [SOURCES / "main.c", *sorted((SOURCES / "tvm_sparse_run").glob("*.c"))]
        flags = [f"-I{SOURCES / 'tvm_sparse_run'}", "-O2", "-rdynamic", "-ldl", "-lpthread", "-o", program]
        _run([_compiler(architecture), *sources, *flags])
        content = library.read_bytes()
        command = [_emulator(architecture), "-L", f"/usr/{architecture}-linux-gnu", program]

        def function(name: str) -> Callable[..., None]:
            return lambda *tensors: _call(name, tensors, content, architecture, folder, command)

        yield function


def _call(name: str, tensors: Any, library: bytes, architecture: str, folder: Path, command: list[Any]) -> None:
    shapes = [(tuple(map(int, each.shape)), str(each.dtype)) for each in tensors]
    specs = tuple(TensorSpec(str(at), shape, dtype) for at, (shape, dtype) in enumerate(shapes))
    arguments = tuple(Tensor(Base.INPUT, at, 0, each.shape, each.dtype) for at, each in enumerate(specs))
    plan = Plan(arguments, (Step(name, arguments),), arguments[-1:], 0)
    signature = Signature(specs, specs[-1:], True)
    data = plan_file.encoded(plan, signature, (), ("model.so", library), (architecture, "", ()), 1)
    (folder / "model.plan").write_bytes(data)
    files = [folder / f"{each.name}.raw" for each in specs]
    for path, tensor in zip(files, tensors, strict=True):
        path.write_bytes(tensor.numpy().tobytes())
    found = _run([*command, folder / "model.plan", *files])
    output = tensors[-1].numpy()
    tensors[-1].copyfrom(np.frombuffer(found, output.dtype).reshape(output.shape))


def _run(command: list[Any]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BuildError(str(command[0]), f"no answer in {TIMEOUT_S} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise BuildError(str(command[0]), f"a kernel cannot be called ({said[-1]})")
    return done.stdout
