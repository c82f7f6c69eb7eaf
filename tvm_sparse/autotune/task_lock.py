"""Claims: tuners that share a log share its tasks, so that no two measure the same candidates.

A claim is a lock on one byte of an empty file among this user's locks, one for each log; which byte, the task decides.
The kernel frees it when its process ends, however that happens. Two `Claims` within one process do not exclude each
other, nor do those of different users or machines, which then measure some candidates twice.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

from tvm_sparse.errors import LogError
from tvm_sparse.measure import device_lock

T = TypeVar("T")


class Claims(Generic[T]):
    """Items that are claimed one by one, also several at a time; a context manager that frees all of them.

    LogError where there can be no log at `path`.

    * `path`: the log.
    * `items`: `left` of them are neither claimed nor done.
    * `name`: what an item is called: who claims the same name excludes each other.
    * `kin`: items of which this gives the same are claimed here one after the other, in their order; None: `name`.
    """

    def __init__(self, path: Path, items: Sequence[T], name: Callable[[T], str], kin: Callable[[T], str] | None = None):
        self.left, self._held = list(items), list[T]()
        self._name, self._kin = name, kin or name
        self._file = _claims_file(path)

    def __enter__(self) -> "Claims[T]":
        return self

    def __exit__(self, *_: object) -> None:
        # Closing it frees what is still claimed.
        self._file.close()

    def take(self) -> T | None:
        """Claim the first item that may be had; None where others have all that is left, or it has to wait for kin."""
        kin = {self._kin(item) for item in self._held}
        for index, item in enumerate(self.left):
            if self._kin(item) not in kin and _claim(self._file, self._name(item), wait=False):
                self._held.append(item)
                return self.left.pop(index)
            kin.add(self._kin(item))
        return None

    def wait(self) -> T:
        """Claim the first item that is left, which another process has, when that is done with it."""
        _claim(self._file, self._name(self.left[0]), wait=True)
        self._held.append(self.left.pop(0))
        return self._held[-1]

    def free(self, item: T, is_done: bool = True) -> None:
        """Give a claimed item free; one that is not done is the first to be claimed again."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _byte(self._name(item)))
        self._held = [each for each in self._held if each is not item]
        if not is_done:
            self.left.insert(0, item)


def in_turn(path: Path, items: Sequence[T], name: Callable[[T], str], waits: Callable[[T], None]) -> Iterator[T]:
    """Each of `items` once, claimed until the next is asked for: first those that nobody else has claimed.

    `waits` is called with an item before another process is waited for, because it has claimed all that is left. The
    rest is as for `Claims`.
    """
    if not items:
        return
    with Claims(path, items, name) as claims:
        while claims.left:
            item = claims.take()
            if item is None:
                waits(claims.left[0])
                item = claims.wait()
            try:
                yield item
            finally:
                claims.free(item)


def _claims_file(path: Path) -> FileIO:
    # What is a loop of links fails below, with a reason.
    path = Path(os.path.realpath(path))
    try:
        # Found out before the first trial, not when that is to be kept.
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise LogError(
            str(path), f"no log can be made there ({error.strerror})", hint="check path and rights"
        ) from error
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return device_lock.file(f"claims-{digest}").open("a+b", buffering=0)


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
