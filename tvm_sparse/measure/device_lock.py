"""Locks by which the tuners of one user on one machine agree that nothing disturbs what is being timed.

A GPU is locked while something is timed on it. On a CPU, builds disturb too: they share the lock, what is timed has it
alone. The kernel frees a lock when its process ends, however that happens.
"""

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tvm_sparse.errors import UsageError
from tvm_sparse.files.ownership import make_private
from tvm_sparse.target.gpu_driver import gpu_id


def name(kind: str) -> str:
    """The device that kernels of target kind `kind` run on, as a file name: ``cpu``, or the GPU's UUID."""
    if kind != "cuda":
        return "cpu"
    return re.sub(r"[^\w-]", "_", gpu_id())


def alone(device: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of the device called `device` while nobody else does; waits for it."""
    return _held(device, fcntl.LOCK_EX)


def together(device: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a device together with others that do the same; waits while somebody has it alone."""
    return _held(device, fcntl.LOCK_SH)


def file(name: str) -> Path:
    """The file to lock that is called `name`, among this user's; it need not exist."""
    return _folder() / f"{name}.lock"


@contextlib.contextmanager
def _held(device: str, operation: int) -> Iterator[None]:
    with file(device).open("ab") as opened:
        fcntl.flock(opened, operation)
        yield


def _folder() -> Path:
    """Where this user's locks are; UsageError where somebody else could put files, or links to files, there."""
    folder = Path(tempfile.gettempdir()) / f"tvm-sparse-locks-{os.getuid()}"
    if not make_private(folder):
        hint = "remove it, or set TMPDIR to a folder of your own"
        raise UsageError(str(folder), "the folder for locks is not this user's alone", hint=hint)
    return folder
