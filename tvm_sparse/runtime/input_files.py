"""Inputs of a model, also from .npy and .npz files: nothing is unpickled, and no more is read than it can take."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.conv.storage import from_file, is_half, stored
from tvm_sparse.errors import InputError, first_line
from tvm_sparse.runtime.multi_shape_model import AnyModel, MultiShapeModel
from tvm_sparse.runtime.signature import TensorSpec
from tvm_sparse.untrusted.regular_file import read_regular

# Times the largest batch that a file may hold for a model that runs larger ones in turns.
MAX_TURNS = 64
# What reading damaged files raises: NumPy evaluates a header as a literal of Python, and a type that it names.
PICKLES = (".pt", ".pth", ".pkl", ".pickle")
_DAMAGED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    EOFError,
    SyntaxError,
    tokenize.TokenError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_inputs(given: Any, compiled: AnyModel) -> list[np.ndarray]:
    """Inputs in the order and of the types of the model's; float32 is rounded where it takes half precision.

    Parameters
    ----------
    given
        A file, a dict of arrays by input name, an array, or a sequence of arrays. A file may hold other arrays too.
    compiled
        The model that takes them.

    Raises
    ------
    InputError
        The file is missing, damaged or larger than inputs can be, or an input is missing or of another type.
    """
    specs, where = compiled.signature.inputs, "inputs"
    if isinstance(given, str | Path):
        where, found = str(given), read_arrays(Path(given), specs[0].name, _most_bytes(compiled))
        given = {spec.name: found[spec.name] for spec in specs if spec.name in found} or found
    elif not isinstance(given, Mapping | list | tuple):
        given = [given]
    arrays = compiled.signature.in_order(given, where)
    return [_as_taken(np.asarray(array), spec) for array, spec in zip(arrays, specs, strict=True)]


def read_arrays(path: Path, first: str, most_bytes: int) -> dict[str, np.ndarray]:
    """The arrays of a file by name; one without a name is called `first`. InputError as `read_inputs`."""
    if path.suffix in PICKLES:
        hint = "write it as an array: numpy.save('x.npy', x.numpy())"
        raise InputError(str(path), "is a pickle, which may run code as it is read", path.suffix, ".npy or .npz", hint)
    try:
        content = BytesIO(read_regular(path, most_bytes))
    except FileNotFoundError:
        raise InputError(str(path), "no such file", hint="check the path") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", hint="check the path") from None
    try:
        if zipfile.is_zipfile(content):
            return _read_archive(path, content, most_bytes)
        return {first: _read_array(content)}
    except _DAMAGED as error:
        problem = f"cannot be read ({first_line(error)})"
        raise InputError(str(path), problem, allowed="a .npy or .npz file of numbers") from None


def _as_taken(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    array = from_file(array.astype(array.dtype.newbyteorder("="), copy=False))
    if is_half(spec.dtype) and array.dtype == np.float32:
        return stored(array, spec.dtype)
    if array.dtype.name != spec.dtype:
        # TVM has no name for some that NumPy has.
        raise InputError(f"input {spec.name}", "wrong element type", array.dtype.name, spec.dtype, "convert it")
    return array


def _most_bytes(compiled: AnyModel) -> int:
    """Of any element type, and with room for headers, so that a wrong type or shape is named as such."""
    allowed = sum(16 * math.prod(spec.shape) + 2**16 for spec in compiled.signature.inputs)
    return allowed * (MAX_TURNS if isinstance(compiled, MultiShapeModel) else 1)


def _read_array(content: BytesIO) -> np.ndarray:
    """The array of an .npy file, which must be as long as its header claims."""
    content.seek(0)
    version = np.lib.format.read_magic(content)
    # Since version 2 a header may be longer than 64 KiB, since version 3 it is UTF-8; its form is the same.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(content)
    left = len(content.getbuffer()) - content.tell()
    if dtype.hasobject or not dtype.itemsize or math.prod(shape) * dtype.itemsize > left:
        raise ValueError(f"an array {shape} of {dtype} in {left} bytes")
    content.seek(0)
    return np.asarray(np.load(content, allow_pickle=False))


def _read_archive(path: Path, content: BytesIO, most_bytes: int) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which must not unpack to more than the model's inputs can be."""
    with zipfile.ZipFile(content) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        if size > most_bytes:
            found, limit = f"{size} bytes unpacked", f"up to {most_bytes} bytes"
            raise InputError(str(path), "holds more than the model's inputs", found, limit, "keep only these in it")
        # What a member unpacks to may not be what it says.
        found_in = {member.filename.removesuffix(".npy"): archive.open(member).read(size + 1) for member in members}
    return {name: _read_array(BytesIO(data)) for name, data in found_in.items()}
