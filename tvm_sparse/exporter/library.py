"""The library of an artifact as bytes: what is in it, what it needs, and the data that TVM has put there."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DATA, KERNEL = "__tvm_ffi__library_bin", "__tvm_ffi_"
# Functions that the C library gives to the code: those that the code finds by pointers, for a CPU or to launch kernels
# on a GPU, and one by its name.
_POINTERS = {f"__TVMBackend{name}" for name in ("ParallelLaunch", "AllocWorkspace", "FreeWorkspace")}
_GPU_POINTERS = {f"__TVMFFI{name}" for name in ("HandleInitOnce", "EnvModLookupFromImports", "FunctionCall")}
_BY_NAME = "TVMFFIErrorSetRaisedFromCStrParts"
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_SECTION, _SYMBOL, _DYNAMIC_SYMBOLS = "<IIQQQQIIQQ", "<IBBHQQ", 11


@dataclass(frozen=True)
class Library:
    """A shared library for Linux.

    * `content`: the whole file.
    * `kernels`: names of its kernels.
    * `functions`: of TVM, that it calls.
    * `address`, `offset`, `size_bytes`: where its data is when it is loaded, and in the file.
    """

    content: bytes
    kernels: frozenset[str]
    functions: frozenset[str]
    address: int
    offset: int
    size_bytes: int

    @classmethod
    def of(cls, content: bytes) -> "Library":
        """Read the library `content`; ValueError or struct.error where it is none that TVM has made."""
        require_elf(content)
        sections = list(_sections(content))
        symbols = dict(_symbols(content, sections))
        section, address = symbols[DATA]
        _, _, _, base, start, *_ = sections[section]
        offset = start + address - base
        (size,) = struct.unpack_from("<Q", content, offset)
        kernels = {name.removeprefix(KERNEL) for name, (section, _) in symbols.items() if section and name != DATA}
        functions = frozenset(name for name in symbols if name.lstrip("_").startswith("TVM"))
        # Its size comes first.
        return cls(content, frozenset(kernels), functions, address + 8, offset + 8, size)

    def unknown(self, is_for_gpu: bool) -> list[str]:
        """Functions that it calls and the C library lacks."""
        return sorted(self.functions - (_GPU_POINTERS if is_for_gpu else _POINTERS) - {_BY_NAME})

    @property
    def data(self) -> bytes:
        """What TVM has put there: byte code and constants."""
        return self.content[self.offset : self.offset + self.size_bytes]

    def with_data(self, data: bytes) -> bytes:
        """The file with `data`, of the same size, in place of its own."""
        return self.content[: self.offset] + data + self.content[self.offset + self.size_bytes :]


def require_elf(content: bytes) -> None:
    """Raise ValueError where `content` is no library for Linux of a kind that TVM makes."""
    if content[:6] != _ELF64_LITTLE_ENDIAN:
        raise ValueError("it is no library of a 64-bit little-endian Linux")


def _sections(content: bytes) -> Iterator[tuple[Any, ...]]:
    (start,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    for index in range(count):
        yield struct.unpack_from(_SECTION, content, start + index * size)


def _symbols(content: bytes, sections: list[tuple[Any, ...]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, and number of its section, 0 where another library has it, and address."""
    (table,) = (each for each in sections if each[1] == _DYNAMIC_SYMBOLS)
    names = sections[table[6]][4]
    for at in range(table[4], table[4] + table[5], table[9]):
        name, _, _, section, address, _ = struct.unpack_from(_SYMBOL, content, at)
        begin = names + name
        yield content[begin : content.index(b"\0", begin)].decode(), (section, address)
