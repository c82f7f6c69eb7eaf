"""Files that take their place in one step: after a kill or a power cut there is the old one or the new one, whole."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tvm_sparse.files.staging import Staging, sweep


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the context ends, unless that is by an error.

    What `path` links to is replaced, and its mode is kept. What killed writers left beside it is removed. OSError where
    it cannot be written, or `path` is no regular file.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    sweep(path.parent)
    with Staging(path.parent) as folder:
        new = folder / "file"
        with new.open("wb") as file:
            yield file
        sync(new)
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, new)
        new.replace(path)
    sync(path.parent)


def write(path: Path, data: bytes) -> None:
    """Put `data` in the place of `path`; OSError as `replaced`."""
    with replaced(path) as file:
        file.write(data)


def require_room(folder: Path, size_bytes: int) -> None:
    """Raise OSError where a file of this size would not fit: for writers that do not fail but crash."""
    disk, (limit, _) = os.statvfs(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    reason = 0
    if limit != resource.RLIM_INFINITY and limit < size_bytes:
        reason = errno.EFBIG
    # Some file systems do not say how large they are.
    elif disk.f_blocks and disk.f_bavail * disk.f_frsize < size_bytes:
        reason = errno.ENOSPC
    if reason:
        raise OSError(reason, os.strerror(reason), str(folder))


def sync(path: Path) -> None:
    """Put a file on the disk, or the names in a folder: without these, a power cut may take whole files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # So say file systems that cannot.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)
