"""What the system's loader does for a shared library before any of its code runs, by what that reads: no sections."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tvm_sparse.exporter.library import require_elf

_SEGMENT, _ENTRY, _RELOCATION, _SYMBOL = (struct.Struct(each) for each in ("<IIQQQQQQ", "<qQ", "<QQq", "<IBBHQQ"))
_LOADED, _DYNAMIC = 1, 2
# Tags of the dynamic section: a library by name, tables, and two tables of relocations with their sizes.
_NEEDED, _NAMES, _SYMBOLS = 1, 5, 6
_RELOCATIONS = ((7, 8), (23, 2))
# Where libraries are searched, and what else makes the loader open a file.
_PATHS = {15: "RPATH", 29: "RUNPATH", 0x6FFFFEFA: "CONFIG", 0x6FFFFEFB: "DEPAUDIT", 0x6FFFFEFC: "AUDIT"}
_PATHS |= {0x7FFFFFFD: "AUXILIARY", 0x7FFFFFFF: "FILTER"}
# Libraries of a C compiler and of the system, which is where they are found without a path.
_OF_THE_SYSTEM = {f"lib{name}" for name in ("c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "gcc_s.so.1", "stdc++.so.6")}
_OF_THE_SYSTEM |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Libraries of models have about 30 entries and 20 relocations.
_MOST = 1 << 16


@dataclass(frozen=True)
class Needs:
    """What a library takes from others.

    * `libraries`: those that are loaded with it.
    * `functions`: names that it takes from any, sorted.
    * `paths`: tags of its own that say where libraries are, or name more files, with what they say.
    """

    libraries: tuple[str, ...]
    functions: tuple[str, ...]
    paths: tuple[str, ...]

    @property
    def problem(self) -> str:
        """What it loads that nobody vouches for; empty where it is the system's alone."""
        others = [each for each in self.libraries if each not in _OF_THE_SYSTEM]
        return f"loads {', '.join((*others, *self.paths))}" if others or self.paths else ""

    @classmethod
    def of(cls, content: bytes) -> "Needs":
        """Those of the library `content`; ValueError, KeyError, IndexError or struct.error where it is none."""
        require_elf(content)
        image = _Image(content)
        entries = list(image.entries())
        # Of several tables the loader takes the last.
        tables = dict(entries)

        def text(at: int) -> str:
            return image.text(tables[_NAMES] + at)

        symbols = set[int]()
        for table, size in _RELOCATIONS:
            for at in range(0, tables.get(size, 0) if table in tables else 0, _RELOCATION.size):
                symbols.add(_RELOCATION.unpack_from(content, image.place(tables[table] + at))[1] >> 32)
                if at > _MOST * _RELOCATION.size:
                    raise ValueError(f"it has more than {_MOST} relocations")
        found = [_SYMBOL.unpack_from(content, image.place(tables[_SYMBOLS] + _SYMBOL.size * each)) for each in symbols]
        return cls(
            tuple(text(value) for tag, value in entries if tag == _NEEDED),
            tuple(sorted({text(name) for name, _, _, section, _, _ in found if name and not section})),
            tuple(f"{_PATHS[tag]} {text(value)}" for tag, value in entries if tag in _PATHS),
        )


class _Image:
    """A library as it lies in memory."""

    def __init__(self, content: bytes):
        self._content = content
        (start,) = struct.unpack_from("<Q", content, 32)
        size, count = struct.unpack_from("<HH", content, 54)
        segments = [_SEGMENT.unpack_from(content, start + index * size) for index in range(count)]
        self._loaded = [(address, at, size) for kind, _, at, address, _, size, *_ in segments if kind == _LOADED]
        self._dynamic = [address for kind, _, _, address, *_ in segments if kind == _DYNAMIC]

    def place(self, address: int) -> int:
        """Where in the file an address is."""
        for begin, at, size in reversed(self._loaded):
            if begin <= address < begin + size:
                return int(at + address - begin)
        raise ValueError(f"address {address:#x} is not in it")

    def text(self, address: int) -> str:
        at = self.place(address)
        return self._content[at : self._content.index(b"\0", at)].decode()

    def entries(self) -> Iterator[tuple[int, int]]:
        """Tags of the dynamic section, and their values."""
        (start,) = self._dynamic
        for index in range(_MOST):
            tag, value = _ENTRY.unpack_from(self._content, self.place(start + index * _ENTRY.size))
            if not tag:
                return
            yield tag, value
        raise ValueError(f"its dynamic section has more than {_MOST} entries")
