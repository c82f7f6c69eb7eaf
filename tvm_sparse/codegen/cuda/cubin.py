"""What is in a cubin, an ELF file: the code of each function is a section ``.text.<name>``."""

import struct

_TEXT = ".text."
# Fields of ELF64's header and of a section header, which alone are needed here (System V ABI, chapter 4).
_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ24x")


def function_bytes(cubin: bytes) -> dict[str, int]:
    """Bytes of machine code by the name of the function."""
    found = sections(cubin).items()
    return {name.removeprefix(_TEXT): len(content) for name, content in found if name.startswith(_TEXT)}


def sections(cubin: bytes) -> dict[str, bytes]:
    """The sections by their names."""
    offset, size, count, names = _HEADER.unpack_from(cubin)
    found = [_SECTION.unpack_from(cubin, offset + size * index) for index in range(count)]
    text = found[names][1]

    def name_of(start: int) -> str:
        begin = text + start
        return cubin[begin : cubin.index(b"\0", begin)].decode()

    return {name_of(start): cubin[begin : begin + length] for start, begin, length in found}
