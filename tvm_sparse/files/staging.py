"""Folders in which files are written before they move, whole, to their place.

Their names are random, and each holds a file that its writer has locked. So nobody takes one for abandoned while its
writer lives, be that a thread, a process or another container, where process ids mean nothing; and after a kill anybody
can tell.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from io import FileIO
from pathlib import Path

from tvm_sparse.files.locks import open_locked, open_unheld

PREFIX = ".tvm-sparse-staging-"
_NAME = re.compile(rf"{re.escape(PREFIX)}\w{{8}}")
_LOCK, _CONTENT = "lock", "content"
# Some file systems of networks have no locks; on these nothing is swept.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Staging:
    """A new, empty folder in `place`, called `name`, that goes when the context ends, or with `cleanup`."""

    def __init__(self, place: str | Path):
        self._lock: FileIO | None = None
        while True:
            self._folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            try:
                self._lock = _locked(self._folder / _LOCK)
                (self._folder / _CONTENT).mkdir()
                break
            except FileNotFoundError:
                # Swept before it was locked.
                continue
            except BaseException:
                self.cleanup()
                raise
        self.name = str(self._folder / _CONTENT)

    def cleanup(self) -> None:
        """Remove the folder and what is in it; doing it again changes nothing."""
        _remove(self._folder)
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Path:
        return Path(self.name)

    def __exit__(self, *_error: object) -> None:
        self.cleanup()


def is_staging(path: Path) -> bool:
    """Whether `path` is named like one, and is a folder of this user's, no link to one."""
    found = path.lstat()
    return bool(_NAME.fullmatch(path.name)) and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def sweep(place: Path) -> None:
    """Remove from `place` the folders whose writers were killed, as far as this user may."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for folder in (Path(each.path) for each in entries if each.name.startswith(PREFIX)):
            # Another process may remove it meanwhile, or still be writing there.
            with contextlib.suppress(OSError):
                if is_staging(folder):
                    _sweep(folder)


def _sweep(folder: Path) -> None:
    if not (folder / _LOCK).exists():
        # Just made, or its writer was killed while it made it: then it is empty.
        folder.rmdir()
        return
    with open_unheld(folder / _LOCK):
        _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder / _CONTENT, ignore_errors=True)
    # The lock goes last: without it, what is left here would never be known for abandoned. A process that a killed one
    # has started may still be writing; then another sweep comes.
    if not (folder / _CONTENT).exists():
        (folder / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()


def _locked(path: Path) -> FileIO | None:
    try:
        return open_locked(path)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
