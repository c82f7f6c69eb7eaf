"""Where constants lie: in the place of TVM's byte code, aligned, so that they are mapped with the library's file."""

from collections.abc import Iterator

from tvm_sparse.exporter.bytecode import Constant, Program, UnknownBytecode
from tvm_sparse.exporter.library import Library
from tvm_sparse.exporter.plan import aligned


def in_place(program: Program, library: Library) -> tuple[bytes, dict[int, int]]:
    """The library with the constants alone, and where in its data each is that was at another place before.

    UnknownBytecode where they do not fit; beside each the byte code has more than the 63 bytes that alignment may take.
    """
    old = library.data
    new, places = bytearray(len(old)), {}
    end = 0
    for each in constants_of(program):
        at = aligned(library.address + end) - library.address
        end = at + each.size_bytes
        if end > len(new):
            raise UnknownBytecode(f"its constants do not fit into {len(new)} bytes when they are aligned")
        new[at:end] = old[each.offset : each.offset + each.size_bytes]
        places[each.offset] = at
    return library.with_data(bytes(new)), places


def constants_of(program: Program) -> Iterator[Constant]:
    """The constants that are used, once each."""
    arguments = (each for call in program.calls for each in call.arguments)
    return iter({each.offset: each for each in arguments if isinstance(each, Constant)}.values())
