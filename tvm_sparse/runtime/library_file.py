"""The shared library of a model that was just compiled: loaded, and at hand to be copied, with no file to clean up."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import tvm


class LibraryFile:
    """A loaded library, `module`, whose file has no name any more; the system frees it with the last who uses it."""

    def __init__(self, module: Any, file: BinaryIO):
        self.module, self._file = module, file

    @classmethod
    def of(cls, write: Callable[[str], object]) -> LibraryFile:
        """What `write` writes to the path it is given."""
        with tempfile.TemporaryDirectory(prefix="tvm-sparse-library-") as folder:
            path = Path(folder, "model.so")
            write(str(path))
            return cls(tvm.runtime.load_module(str(path)), path.open("rb"))

    def content(self) -> bytes:
        """The whole library; from any thread."""
        return os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size, 0)
