"""Temporary folders from which libraries can be loaded; making one removes those of killed processes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from tvm_sparse.errors import BuildError
from tvm_sparse.files.ownership import exposed, make_private
from tvm_sparse.files.staging import Staging, sweep
from tvm_sparse.files.user_folders import cache_folder


class TemporaryFolder(Staging):
    """As `tempfile.TemporaryDirectory`; BuildError where it cannot be made, or nothing in it could be executed."""

    def __init__(self) -> None:
        try:
            place = _place()
            sweep(place)
            super().__init__(place)
        except OSError as error:
            problem = f"no temporary folder can be made ({error.strerror})"
            hint = "free some space, or set TMPDIR to another folder"
            raise BuildError("TMPDIR", problem, hint=hint) from error


def _place() -> Path:
    """The folder for temporary files, or one of this user's where others could change that or it executes nothing."""
    usual = Path(tempfile.gettempdir())
    executes = _executes(usual)
    if executes and not exposed(usual):
        return usual
    with contextlib.suppress(OSError):
        own = cache_folder() / "temporary"
        if make_private(own) and _executes(own):
            return own
    if not executes:
        problem = f"nothing may be executed in {usual}, the folder for temporary files"
        raise BuildError("TMPDIR", problem, hint="set it to a folder on a file system that allows execution")
    return usual


def _executes(folder: Path) -> bool:
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC
