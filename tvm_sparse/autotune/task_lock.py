"""Claims: tuners that share a log share its tasks, so that no two measure the same candidates.

A claim is a lock on one byte of an empty file beside the log, ``.<log>.claims``; which byte, the task decides. The
kernel frees it when its process ends, however that happens. Two tuners within one process do not exclude each other.
"""

import fcntl
import hashlib
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import TypeVar

from tvm_sparse.errors import LogError

T = TypeVar("T")


def in_turn(path: Path, items: Sequence[T], name: Callable[[T], str], waits: Callable[[T], None]) -> Iterator[T]:
    """Each of `items` once, claimed until the next is asked for: first those that nobody else has claimed.

    Parameters
    ----------
    path
        The log.
    name
        What an item is called: who claims the same name excludes each other.
    waits
        Called with an item before another process is waited for, because it has claimed all that is left.

    Raises
    ------
    LogError
        There can be no file beside the log.
    """
    if not items:
        return
    left = list(items)
    with _claims_file(path) as file:
        while left:
            item = next((item for item in left if _claim(file, name(item), wait=False)), None)
            if item is None:
                item = left[0]
                waits(item)
                _claim(file, name(item), wait=True)
            try:
                yield item
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN, 1, _byte(name(item)))
            left.remove(item)


def _claims_file(path: Path) -> FileIO:
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f".{path.name}.claims").open("a+b", buffering=0)
    except OSError as error:
        raise LogError(
            str(path), f"no file can be made beside it ({error.strerror})", hint="check path and rights"
        ) from error


def _claim(file: FileIO, name: str, wait: bool) -> bool:
    """Claim `name`; False where another process has, and is not waited for."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, _byte(name))
    except BlockingIOError:
        return False
    return True


def _byte(name: str) -> int:
    """Where in the file a name lies; names share a byte as seldom as 48 bits of a digest are the same."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)
