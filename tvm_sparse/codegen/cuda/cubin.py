"""Sizes of functions in a cubin, which is an ELF file: the code of each is a section ``.text.<name>``."""

import struct

_TEXT = ".text."
# Fields of ELF64's header and of a section header, which alone are needed here (System V ABI, chapter 4).
_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ24x")


def function_bytes(cubin: bytes) -> dict[str, int]:
    """Bytes of machine code by the name of the function."""
    offset, size, count, names = _HEADER.unpack_from(cubin)
    sections = [_SECTION.unpack_from(cubin, offset + size * index) for index in range(count)]
    text = sections[names][1]

    def name_of(start: int) -> str:
        begin = text + start
        return cubin[begin : cubin.index(b"\0", begin)].decode()

    named = [(name_of(start), length) for start, _, length in sections]
    return {name.removeprefix(_TEXT): length for name, length in named if name.startswith(_TEXT)}
