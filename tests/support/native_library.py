"""C++ that tests compile, kept by its text: what was compiled before, in this run or another, is only loaded."""

import functools
import hashlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

# Environment variable: the folder, which conftest.py sets.
FOLDER = "TVM_SPARSE_TEST_LIBRARIES"
# Libraries that no test has asked for in so long go.
UNUSED_DAYS = 14


@functools.cache
def _folder() -> Path:
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in folder.glob("*.so"):
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)
    return folder


@functools.cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout


def build(source: str, *flags: str) -> Path:
    """The shared library of `source`, C++ without headers of its own, compiled with `flags`."""
    digest = hashlib.sha256("\0".join([_compiler(), *flags, source]).encode()).hexdigest()
    path = _folder() / f"{digest}.so"
    if path.exists():
        path.touch()
        return path
    # Beside it, so that no other process of the run loads one that is half written.
    with tempfile.TemporaryDirectory(dir=_folder()) as own:
        code, library = Path(own, "code.cc"), Path(own, "code.so")
        code.write_text(source)
        subprocess.run(["g++", *flags, "-w", "-shared", "-fPIC", "-o", str(library), str(code)], check=True)
        library.rename(path)
    return path
