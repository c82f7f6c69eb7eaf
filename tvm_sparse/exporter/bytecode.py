"""The byte code of TVM's virtual machine, as the library of an artifact holds it: functions, constants, instructions.

The format is TVM's own affair and has no document: it is that of `src/runtime/vm/executable.cc` in the version of TVM
that `manifest.check_versions` demands. What is read here is checked by its magic numbers and its end.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_EXECUTABLE, _LIBRARY, _CUDA = "relax.VMExecutable", "_lib", "cuda"
_MAGIC, _TENSOR_MAGIC = 0xD225DE2F4214151E, 0xDD5E40F096B4A13F
_CALL, _RETURN = 1, 2
# Arguments have their kind in the highest byte of a word.
_REGISTER, _IMMEDIATE, _CONSTANT, _FUNCTION = range(4)
_VALUE_BITS = 56
# What values hold, by TVM's type index.
_INT, _FLOAT, _DTYPE, _TEXT, _SHAPE, _TENSOR = 1, 3, 5, 65, 69, 70
_DEVICE_CPU = 1
# DLPack's codes of types, and how the rest of this project writes them.
_TYPE_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


class UnknownBytecode(ValueError):
    """It is no byte code of the version that this file reads, or does what no plan can; `hint`: what to do about it."""

    def __init__(self, problem: str, hint: str = "run it with tvm_sparse.load"):
        super().__init__(problem)
        self.hint = hint


def calls_tvm(problem: str) -> UnknownBytecode:
    """What it calls is part of TVM."""
    hint = "run it with tvm_sparse.load, or leave operators that sort, as TopK does, out of the model"
    return UnknownBytecode(problem, hint)


@dataclass(frozen=True)
class Constant:
    """A tensor, `offset` bytes into the byte code."""

    shape: tuple[int, ...]
    dtype: str
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Register:
    """An argument that is in a register, by its number."""

    number: int


@dataclass(frozen=True)
class Call:
    """``result = function(*arguments)``; an argument is a `Register`, a number, a type, a shape, text or `Constant`."""

    function: str
    result: Register
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel for a GPU: types of its arguments by DLPack's code and bits, and tags of what else a launch says."""

    name: str
    arguments: tuple[tuple[int, int], ...]
    launch: tuple[str, ...]


@dataclass(frozen=True)
class CudaModule:
    """Code for a GPU, as ``cubin`` or another `format`, `offset` bytes into the byte code."""

    format: str
    kernels: tuple[Kernel, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Program:
    """The function ``main``: its parameters are the first registers, its `result` is in one too."""

    parameters: int
    calls: tuple[Call, ...]
    result: Register
    modules: tuple[CudaModule, ...] = ()


def read(content: bytes) -> Program:
    """The program in `content`, the data that a library has for TVM.

    UnknownBytecode where it cannot be read, has more than a library and one program, or branches.
    """
    try:
        return _program(_Reader(content))
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise UnknownBytecode(f"byte code of another TVM: {error!r}") from error


class _Reader:
    """Little-endian values, one after the other."""

    def __init__(self, content: bytes):
        self.content, self.at = content, 0

    def take(self, format: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{format}", self.content, self.at)
        self.at += struct.calcsize(f"<{format}")
        return values

    def number(self, format: str = "Q") -> int:
        return int(self.take(format)[0])

    def numbers(self) -> tuple[int, ...]:
        return self.take(f"{self.number()}q")

    def text(self) -> str:
        return bytes(self.take(f"{self.number()}s")[0]).decode()

    def skip(self, size: int) -> int:
        """Where what is skipped begins."""
        self.at += size
        if self.at > len(self.content):
            raise IndexError("it ends too early")
        return self.at - size


def _program(reader: _Reader) -> Program:
    # The tree of modules: which module imports which.
    reader.numbers(), reader.numbers()
    if (kind := reader.text()) != _EXECUTABLE:
        raise UnknownBytecode(f"it begins with a module {kind}")
    end = reader.number() + reader.at
    if reader.number() != _MAGIC:
        raise UnknownBytecode("its magic number is another")
    reader.text()
    names, main = [], None
    for _ in range(reader.number()):
        reader.number("I")
        names.append(reader.text())
        begin, _end, parameters, registers = reader.take("4Q")
        for _ in range(reader.number()):
            reader.text()
        if names[-1] == "main":
            main = begin, parameters, registers
    # TVM's virtual machine lists each constant that it takes, in no scope, if it runs before the library is written.
    scopes = [(reader.number("q"), reader.text()) for _ in range(reader.number())]
    if named := sorted(scope for _, scope in scopes if scope):
        raise UnknownBytecode(f"a constant is in {named[0]} memory")
    constants = [_constant(reader) for _ in range(reader.number())]
    offsets, code = reader.numbers(), reader.numbers()
    if main is None or reader.at != end:
        raise UnknownBytecode("it has no function main, or does not end where it should")
    modules = []
    while reader.at < len(reader.content):
        if (kind := reader.text()) == _CUDA:
            modules.append(_cuda_module(reader))
        elif kind != _LIBRARY:
            raise UnknownBytecode(f"it has a module {kind}")
    begin, parameters, registers = main
    *calls, result = _instructions(offsets[begin:], code, names, constants, registers)
    return Program(parameters, tuple(calls), result, tuple(modules))


def _cuda_module(reader: _Reader) -> CudaModule:
    end = reader.number() + reader.at
    format, kernels = reader.text(), []
    for _ in range(reader.number()):
        reader.text()
        name = reader.text()
        arguments = tuple(reader.take("BBH")[:2] for _ in range(reader.number()))
        launch = tuple(reader.text() for _ in range(reader.number()))
        if any(reader.take(f"{reader.number()}i")):
            raise UnknownBytecode(f"kernel {name} takes a map of a tensor")
        kernels.append(Kernel(name, arguments, launch))
    size = reader.number()
    module = CudaModule(format, tuple(kernels), reader.skip(size), size)
    if reader.at != end:
        raise UnknownBytecode("a module does not end where it should")
    return module


def _constant(reader: _Reader) -> Any:
    kind = reader.number("I")
    if kind == _TENSOR:
        magic, _reserved, device, _number, rank = reader.take("QQIII")
        if magic != _TENSOR_MAGIC or device != _DEVICE_CPU:
            raise UnknownBytecode("a constant is not on a CPU")
        dtype = _dtype(reader)
        shape = reader.take(f"{rank}q")
        size = reader.number()
        return Constant(shape, dtype, reader.skip(size), size)
    if kind == _SHAPE:
        return reader.numbers()
    if kind == _DTYPE:
        return _dtype(reader)
    if kind == _TEXT:
        return reader.text()
    if kind in (_INT, _FLOAT):
        return reader.number("q") if kind == _INT else reader.take("d")[0]
    raise UnknownBytecode(f"a constant has type {kind}")


def _dtype(reader: _Reader) -> str:
    code, bits, lanes = reader.take("BBH")
    if lanes != 1:
        raise UnknownBytecode("a tensor holds vectors")
    return _TYPE_NAMES[code] + ("" if _TYPE_NAMES[code] == "bool" else str(bits))


def _instructions(
    offsets: tuple[int, ...], code: tuple[int, ...], names: list[str], constants: list[Any], registers: int
) -> Iterator[Any]:
    """Calls, and last the register of the result."""

    def argument(word: int) -> Any:
        kind, value = divmod(word % (1 << 64), 1 << _VALUE_BITS)
        if kind == _REGISTER:
            # Beyond are the machine itself and a register that holds nothing.
            return Register(value) if value < registers else None
        if kind == _IMMEDIATE:
            return value if value < 1 << _VALUE_BITS - 1 else value - (1 << _VALUE_BITS)
        if kind not in (_CONSTANT, _FUNCTION):
            raise UnknownBytecode(f"an argument has kind {kind}")
        return (constants if kind == _CONSTANT else names)[value]

    for at in offsets:
        operation, first = code[at : at + 2]
        if operation == _RETURN:
            yield Register(first)
            return
        if operation != _CALL:
            raise UnknownBytecode("it branches")
        function, count = code[at + 2 : at + 4]
        yield Call(names[function], Register(first), tuple(map(argument, code[at + 4 : at + 4 + count])))
    raise UnknownBytecode("it does not return")
