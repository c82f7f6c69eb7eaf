"""Size of the GPU code in a compiled library, from the ELF images of ``EM_CUDA`` machines that it contains."""

import struct
from collections.abc import Iterator
from pathlib import Path

# ELF, 64 bits, little-endian.
MAGIC = b"\x7fELF\x02\x01"
EM_CUDA = 190
HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")


def code_bytes(path: Path) -> int | None:
    """Bytes of the sections ``.text.<kernel>``; None where there is no GPU code, or only compressed code."""
    data = path.read_bytes()
    sizes = [size for name, size in _sections(data) if name.startswith(b".text.")]
    return sum(sizes) if sizes else None


def _sections(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Name and size of every section of every CUDA image in `data`."""
    start = data.find(MAGIC)
    while start >= 0:
        if start + HEADER.size <= len(data):
            _, machine, _, _, _, table, _, _, _, _, entry, count, names = HEADER.unpack_from(data, start)
            if machine == EM_CUDA and entry == SECTION.size and start + table + count * entry <= len(data):
                rows = [SECTION.unpack_from(data, start + table + i * entry) for i in range(count)]
                texts = start + rows[names][4]
                for row in rows:
                    name = texts + row[0]
                    yield data[name : data.index(b"\0", name)], row[5]
        start = data.find(MAGIC, start + 1)
