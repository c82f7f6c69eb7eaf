"""Regular files that are no larger than they may be.

A path may lead to a FIFO, which waits for a writer for ever, a device, which never ends, or a file of holes that claims
more than all memory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 1 << 20


def open_regular(path: str | Path, most_bytes: int) -> BinaryIO:
    """Open a file to be read.

    OSError where it is no regular file, is larger than `most_bytes`, or cannot be opened; `strerror` says which.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        # Of a path with a null character, or one that cannot be encoded.
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    found = os.fstat(descriptor)
    problem = "" if stat.S_ISREG(found.st_mode) else "it is no regular file"
    if stat.S_ISDIR(found.st_mode):
        problem = os.strerror(errno.EISDIR)
    if not problem and found.st_size > most_bytes:
        problem = f"it has {found.st_size} bytes, more than {most_bytes}"
    if problem:
        os.close(descriptor)
        raise OSError(errno.EINVAL, problem, str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """The content of a file; OSError as `open_regular`."""
    with open_regular(path, most_bytes) as file:
        # It may grow meanwhile.
        return file.read(most_bytes)


def sha256_of(path: str | Path, most_bytes: int) -> str:
    """SHA-256 of a file, 64 hex digits; OSError as `open_regular`."""
    found = hashlib.sha256()
    with open_regular(path, most_bytes) as file:
        while part := file.read(_CHUNK_BYTES):
            found.update(part)
    return found.hexdigest()
