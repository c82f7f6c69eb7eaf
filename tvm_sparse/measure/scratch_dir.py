"""A folder for a process's temporary files that does not outlive it for long, even if it is killed."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tvm_sparse.measure import device_lock

PREFIX = "tvm_sparse_"
# A file in each folder that its process has locked.
LOCK = "lock"


class Workspace:
    """A new folder, called `name`; making it removes those of processes that have died."""

    def __init__(self) -> None:
        # No folder may look abandoned between its making and its locking.
        with device_lock.alone("workspaces"):
            _remove_abandoned()
            self.name = tempfile.mkdtemp(prefix=PREFIX)
            self._lock = Path(self.name, LOCK).open("wb")  # noqa: SIM115 - locked as long as it is open
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def cleanup(self) -> None:
        """Remove the folder; doing it again changes nothing."""
        if not self._lock.closed:
            shutil.rmtree(self.name)
            self._lock.close()


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = folder / LOCK
        if not lock.is_file() or lock.stat().st_uid != os.getuid():
            continue
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            # Its workers may still be about to die.
            shutil.rmtree(folder, ignore_errors=True)
