"""What compiled code asks cuDNN for, as the calls of its C functions that the C library makes: `sources/cudnn.c`.

The code passes arrays and a text. `Convolution` and `Transposition`, which do in Python what a text says, are run once
on a cuDNN that only notes its calls.
"""

import ctypes
import json
import re
import struct
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tvm_sparse.cudnn.api import Cudnn
from tvm_sparse.cudnn.convolution import ONE, ZERO, Convolution
from tvm_sparse.cudnn.layout_change import LayoutChange, Transposition
from tvm_sparse.cudnn.plan import Plan

# Kinds of arguments.
_NUMBER, _HANDLE, _DESCRIPTOR, _ARRAY, _REAL, _ONE, _ZERO, _LIMIT, _INTEGERS, _INTEGER = range(10)
# Stand for addresses while calls are noted: arrays are so far apart, and descriptors and the handle lie elsewhere.
_ARRAYS, _DESCRIPTORS, _HANDLE_ADDRESS, _APART = 1 << 60, 1 << 59, 1 << 58, 1 << 48
# As JSON begins in the texts; none is longer.
_TEXT = re.compile(rb'\{"(?:spec|shape)": [^\0]{1,4096}\}\0')


@dataclass(frozen=True)
class Call:
    """A call of `function`; an argument is its kind, its number among those of the kind, and eight bytes."""

    function: str
    arguments: tuple[tuple[int, int, bytes], ...]


@dataclass(frozen=True)
class Work:
    """What `text` stands for, of so many arrays: kinds of descriptors, calls that set these up, calls of a run."""

    text: str
    arrays: int
    descriptors: tuple[str, ...]
    setup: tuple[Call, ...]
    calls: tuple[Call, ...]


def works_in(code: bytes) -> tuple[Work, ...]:
    """The works that the library `code` has texts of; ValueError, KeyError or TypeError where one cannot be read."""
    return tuple(_work(each[:-1].decode()) for each in sorted(set(_TEXT.findall(code))))


def _work(text: str) -> Work:
    noted = _Noted()
    work: Convolution | Transposition
    if "spec" in json.loads(text):
        # The C library leaves the choice to cuDNN: it makes descriptors of the older functions only.
        plan = Plan.from_text(text).unsuggested
        noted.limit, names = plan.workspace_bytes, plan.arguments
        work = Convolution(noted, _HANDLE_ADDRESS, plan)
    else:
        change = LayoutChange.from_text(text)
        names = change.arguments
        work = Transposition(noted, _HANDLE_ADDRESS, change)
    setup, noted.calls = tuple(noted.calls), []
    work(0, {name: _ARRAYS + number * _APART for number, name in enumerate(names)})
    calls = tuple(each for each in noted.calls if each.function != "cudnnSetStream")
    return Work(text, len(names), tuple(noted.descriptors), setup, calls)


class _Noted(Cudnn):
    """Makes no call, and notes all."""

    def __init__(self) -> None:
        self.version, self.limit = "", 0
        self.descriptors: list[str] = []
        self.calls: list[Call] = []

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append(Call(name, tuple(chain.from_iterable(map(_arguments, arguments)))))

    def workspace_bytes(self, handle: int, x: int, weight: int, convolution: int, y: int, algorithm: int) -> int:
        name, arguments = "cudnnGetConvolutionForwardWorkspaceSize", (handle, x, weight, convolution, y, algorithm)
        limit = (_LIMIT, 0, struct.pack("<Q", self.limit))
        self.calls.append(Call(name, (*map(_argument, arguments), limit)))
        return 0

    def _created(self, name: str) -> int:
        self.descriptors.append(name.removeprefix("cudnnCreate").removesuffix("Descriptor"))
        return _DESCRIPTORS + len(self.descriptors) - 1


def _arguments(value: Any) -> list[tuple[int, int, bytes]]:
    """What stands for `value`: of an array of integers where they are, then each."""
    if not isinstance(value, ctypes.Array):
        return [_argument(value)]
    return [(_INTEGERS, 0, bytes(8)), *((_INTEGER, 0, struct.pack("<q", each)) for each in value)]


def _argument(value: Any) -> tuple[int, int, bytes]:
    if isinstance(value, float):
        return _REAL, 0, struct.pack("<d", value)
    if not isinstance(value, int):
        return {id(ONE): _ONE, id(ZERO): _ZERO}[id(value)], 0, bytes(8)
    if value >= _ARRAYS:
        number, offset = divmod(value - _ARRAYS, _APART)
        return _ARRAY, number, struct.pack("<Q", offset)
    if value >= _DESCRIPTORS:
        return _DESCRIPTOR, value - _DESCRIPTORS, bytes(8)
    return (_HANDLE, 0, bytes(8)) if value == _HANDLE_ADDRESS else (_NUMBER, 0, struct.pack("<q", value))
