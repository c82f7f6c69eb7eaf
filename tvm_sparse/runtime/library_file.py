"""The shared library of a model that was just compiled: loaded, and at hand to be copied, with no file to clean up."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm

from tvm_sparse.errors import BuildError
from tvm_sparse.files import publish
from tvm_sparse.files.temporary import TemporaryFolder

# What most models' code takes, and what links it, beside constants.
CODE_BYTES = 8 << 20


def export(executable: Any, path: Path, constants_bytes: int = 0, architecture: str = "") -> None:
    """Have TVM write the library of `executable`, whose constants take about so many bytes, to `path`.

    Code for another `architecture` than this machine's is linked by the cross compiler that Debian has for it.

    OSError where there is no room for it; where LLVM finds that out itself, it ends the whole process. RuntimeError
    where it cannot be linked, BuildError where that compiler is missing.
    """
    # Constants, or code in their place, are in object files, and again in the library.
    publish.require_room(path.parent, CODE_BYTES + 2 * constants_bytes)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        executable.export_library(str(path), workspace_dir=folder, **_compiler(architecture))


def _compiler(architecture: str) -> dict[str, str]:
    """What TVM takes to link with another compiler than this machine's."""
    if architecture in ("", platform.machine()):
        return {}
    name = f"{architecture}-linux-gnu-gcc"
    if shutil.which(name) is None:
        hint = f"install it, as with: apt-get install gcc-{architecture}-linux-gnu"
        raise BuildError(
            "model.so", f"linking for {architecture} needs the compiler {name}, which is not there", hint=hint
        )
    return {"cc": name}


class LibraryFile:
    """A loaded library, `module`, whose file has no name any more; the system frees it with the last who uses it."""

    def __init__(self, module: Any, descriptor: int):
        self.module, self._descriptor = module, descriptor
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def of(cls, write: Callable[[Path], object]) -> LibraryFile:
        """What `write` writes to the path it is given."""
        with TemporaryFolder() as folder:
            path = Path(folder, "model.so")
            write(path)
            return cls(tvm.runtime.load_module(str(path)), os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def content(self) -> bytes:
        """The whole library; from any thread."""
        found, size = bytearray(), os.fstat(self._descriptor).st_size
        # Linux reads 2 GiB at a time, at most.
        while len(found) < size and (part := os.pread(self._descriptor, size - len(found), len(found))):
            found += part
        return bytes(found)
