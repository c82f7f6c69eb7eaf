"""The shared library of a model that was just compiled: loaded, and at hand to be copied, with no file to clean up."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm

from tvm_sparse.files.temporary import TemporaryFolder


class LibraryFile:
    """A loaded library, `module`, whose file has no name any more; the system frees it with the last who uses it."""

    def __init__(self, module: Any, descriptor: int):
        self.module, self._descriptor = module, descriptor
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def of(cls, write: Callable[[str], object]) -> LibraryFile:
        """What `write` writes to the path it is given."""
        with TemporaryFolder() as folder:
            path = Path(folder, "model.so")
            write(str(path))
            return cls(tvm.runtime.load_module(str(path)), os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def content(self) -> bytes:
        """The whole library; from any thread."""
        found, size = bytearray(), os.fstat(self._descriptor).st_size
        # Linux reads 2 GiB at a time, at most.
        while len(found) < size and (part := os.pread(self._descriptor, size - len(found), len(found))):
            found += part
        return bytes(found)
