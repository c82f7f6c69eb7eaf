"""Locks on files. The system frees them when their holder ends, however that happens and in whatever container."""

import contextlib
import fcntl
import os
from io import FileIO
from pathlib import Path


def open_locked(path: Path, wait: bool = True) -> FileIO:
    """Open a file, made where it is missing, to append, unbuffered; nobody else has its lock until it is closed.

    Raises
    ------
    BlockingIOError
        Somebody else has the lock, and `wait` is false.
    OSError
        The file cannot be opened, or its file system has no locks.
    """
    operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        file = path.open("a+b", buffering=0)
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
