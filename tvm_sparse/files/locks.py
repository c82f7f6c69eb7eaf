"""Locks on files. The system frees them when their holder ends, however that happens and in whatever container."""

import contextlib
import fcntl
import os
from io import FileIO
from pathlib import Path
from typing import Literal


def open_locked(path: Path) -> FileIO:
    """Open a file, made where it is missing, to append, unbuffered; nobody else has its lock until it is closed.

    OSError where the file cannot be opened, or its file system has no locks.
    """
    return _opened(path, "a+b", fcntl.LOCK_EX)


def open_unheld(path: Path) -> FileIO:
    """As `open_locked`, of a file that is there and whose lock nobody has.

    OSError as for `open_locked`; BlockingIOError where somebody has the lock, FileNotFoundError where there is no
    file.
    """
    return _opened(path, "r+b", fcntl.LOCK_EX | fcntl.LOCK_NB)


def _opened(path: Path, mode: Literal["a+b", "r+b"], operation: int) -> FileIO:
    while True:
        file = path.open(mode, buffering=0)
        try:
            fcntl.flock(file, operation)
            # Who had the lock before may have removed the file, or put another one in its place.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()
