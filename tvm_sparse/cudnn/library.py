"""Where cuDNN lies on this machine, and loading it.

Torch's CUDA builds bring it along, and so does the package nvidia-cudnn-cu13. It is loaded by an absolute path, from
where Python's packages or the system's libraries are, so never from the working directory.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tvm_sparse.errors import BuildError, first_line

# Functions keep their types within a major version.
NAME = "libcudnn.so.9"
NOT_FOUND = "cuDNN 9 was not found"
INSTALL = "pip install nvidia-cudnn-cu13, or set CUDNN_PATH to the absolute path of the folder that holds its lib"
# Where packages keep it, below a folder of Python's path; torch's older builds had a copy of their own.
_IN_PACKAGES = ("nvidia/cudnn/lib", "nvidia/*/lib", "torch/lib")
_LDCONFIG = "/sbin/ldconfig"


@dataclass(frozen=True)
class Library:
    """cuDNN as it was loaded; `version` reads like ``9.19.0``."""

    path: Path
    version: str
    functions: ctypes.CDLL


_IS_LEFT_OUT = ContextVar("_IS_LEFT_OUT", default=False)


@contextmanager
def left_out() -> Iterator[None]:
    """Within it `find` finds none, so that models are compiled without cuDNN."""
    token = _IS_LEFT_OUT.set(True)
    try:
        yield
    finally:
        _IS_LEFT_OUT.reset(token)


def find() -> Path | None:
    """The cuDNN that `load` takes where this process has not loaded one yet; None where there is or shall be none.

    None shall be within `left_out`, and where the environment variable TVM_SPARSE_CUDNN is 0.
    """
    return None if _IS_LEFT_OUT.get() or os.environ.get("TVM_SPARSE_CUDNN") == "0" else _found()


@cache
def _found() -> Path | None:
    return next((path.resolve() for folder in _folders() if (path := folder / NAME).is_file()), None)


@cache
def load() -> Library:
    """The cuDNN that this process uses: the one that torch has loaded already, or else the one that `find` finds.

    Two in one process would take each other's parts. BuildError where there is none, or it cannot be loaded.
    """
    path = _loaded() or find()
    if path is None:
        raise BuildError("cuDNN", NOT_FOUND, hint=INSTALL)
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        hint = "install it anew: pip install --force-reinstall nvidia-cudnn-cu13"
        raise BuildError("cuDNN", f"{path} cannot be loaded ({first_line(error)})", hint=hint) from error
    functions.cudnnGetVersion.restype = ctypes.c_size_t
    number = functions.cudnnGetVersion()
    return Library(path, f"{number // 10000}.{number // 100 % 100}.{number % 100}", functions)


def version() -> str | None:
    """The version of `load`'s; None where there is none that loads."""
    try:
        return load().version
    except BuildError:
        return None


def _loaded() -> Path | None:
    """The cuDNN that another package has loaded into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = (Path(line[line.index("/") :]) for line in lines if "/" in line)
    return next((path for path in paths if path.name.startswith(NAME)), None)


def _folders() -> Iterator[Path]:
    """Folders in which cuDNN may lie, the most particular first; all absolute."""
    given = Path(os.environ.get("CUDNN_PATH", ""))
    if given.is_absolute():
        yield from (given / "lib", given / "lib64", given)
    here = os.path.realpath(os.curdir)
    for entry in sys.path:
        # Python puts the working directory there too, as an empty text or by its name.
        if Path(entry).is_absolute() and os.path.realpath(entry) != here:
            for pattern in _IN_PACKAGES:
                yield from sorted(Path(entry).glob(pattern))
    yield Path(sys.prefix) / "lib"
    yield from filter(Path.is_absolute, map(Path, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    yield from _of_system()


def _of_system() -> Iterator[Path]:
    """Folders in which the system's loader finds it."""
    try:
        done = subprocess.run([_LDCONFIG, "-p"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in done.stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith(f"{NAME} "):
            yield Path(path).parent
