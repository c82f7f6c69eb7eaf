"""Failures of a GPU as sentences: it is out of memory, or it is lost to this process."""

import ctypes
import os
import re
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm_sparse.errors import BuildError

# As the driver, CUDA's runtime and torch name failures.
_NAMED = re.compile(r"CUDA_ERROR_\w+|\bcudaError[A-Z]\w+|CUDA error: [^\n.;(]+|CUDA out of memory")
# Parts of names and descriptions, without blanks.
_OUT_OF_MEMORY = ("outofmemory", "memoryallocation")
_LOST = (
    "illegaladdress",
    "illegalmemoryaccess",
    "illegalinstruction",
    "misalignedaddress",
    "addressspace",
    "invalidpc",
    "invalidprogramcounter",
    "hardwarestack",
    "launchfail",
    "launchtimeout",
    "launchtimedout",
    "assert",
    "uncorrectable",
    "contained",
    "tensormemoryleak",
    "contextisdestroyed",
    "deviceunavailable",
    "devicesunavailable",
    "externaldevice",
    "nodevice",
)


def gpu_failure(error: BaseException) -> BuildError | None:
    """The sentence for a failure of the GPU itself, as TVM, torch or the driver report it; None for any other."""
    name = _name(error)
    if is_out_of_memory(error):
        smaller = "free memory there, or compile the model for a smaller batch"
        return BuildError("GPU", f"it is out of memory ({name})", hint=smaller)
    if is_lost(error):
        again = "start this process again; if that does not help, see what nvidia-smi says of the GPU"
        return BuildError("GPU", f"it is lost to this process ({name})", hint=again)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the GPU had too little memory left, or torch says so."""
    return _holds(error, _OUT_OF_MEMORY)


def is_lost(error: BaseException) -> bool:
    """Whether no further call of this process can succeed on the GPU."""
    return _holds(error, _LOST)


@contextmanager
def as_sentences() -> Iterator[None]:
    """Raise failures of the GPU as `gpu_failure` puts them."""
    try:
        yield
    except Exception as error:
        found = gpu_failure(error)
        if found is None or isinstance(error, BuildError):
            raise
        raise found from error


def _name(error: BaseException) -> str:
    match = _NAMED.search(str(error))
    return match[0].strip() if match else ""


def _holds(error: BaseException, parts: Iterable[str]) -> bool:
    words = re.sub("[^a-z]", "", _name(error).lower())
    return any(part in words for part in parts)


# What a child must not free.
_OWNERS: weakref.WeakSet[Any] = weakref.WeakSet()


def keep(owner: object) -> None:
    """Never free it: memory of a lost GPU cannot be freed, and TVM ends the process where it cannot free memory."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


def keep_in_children(owner: object) -> None:
    """Have `keep` called in children that are forked, to which the GPU is lost."""
    _OWNERS.add(owner)


def _keep_all() -> None:
    for owner in list(_OWNERS):
        keep(owner)


os.register_at_fork(after_in_child=_keep_all)
