"""A float model and samples of its inputs -> the file of the same model in eight bits, which is kept."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.conv.dtypes import INT8
from tvm_sparse.errors import InputError, ModelError, UsageError
from tvm_sparse.files.publish import write
from tvm_sparse.files.user_folders import cache_folder
from tvm_sparse.frontend.onnx.model import load_onnx
from tvm_sparse.frontend.onnx.quantised.quantise import FORM, quantise
from tvm_sparse.frontend.optional_imports import onnx, require
from tvm_sparse.runtime.input_files import read_arrays

# Of a file of samples, unpacked.
MOST_BYTES = 1 << 32


def quantised_file(source: Any, samples: Any, shapes: Mapping[str, Sequence[int]] | None = None) -> Path:
    """The file of `source`, an .onnx file, in eight bits, in ``quantised`` in the cache folder.

    It is made once of the same model and `samples`, which are as `tvm_sparse.compile` takes them; `shapes` says how
    many of them an input takes whose shape the file leaves open, else it is one. ModelError and UsageError as
    `quantise`, and where `source` is another kind of model or there are no samples. InputError where these do not fit.
    """
    if not isinstance(source, str | Path) or Path(source).suffix != ".onnx":
        found, hint = type(source).__name__ if not isinstance(source, str | Path) else str(source), "export it to ONNX"
        raise ModelError("model", "dtype int8 is for .onnx files", found, hint=hint)
    if samples is None:
        raise UsageError("samples", "are missing, of which dtype int8 finds the range of each tensor", hint=_HINT)
    model = load_onnx(Path(source))
    sizes = _sizes(model, shapes or {})
    where = str(samples) if isinstance(samples, str | Path) else "samples"
    arrays = _cast(_read(samples, list(sizes)), model, where)
    turns = _turns(sizes, arrays, where)
    content = model.SerializeToString(deterministic=True)
    path = cache_folder() / "quantised" / f"{Path(source).stem}-{_digest(content, arrays, turns)}.onnx"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, quantise(str(source), model, _feeds(arrays, turns)))
    return path


_HINT = "pass samples=, or --samples, a .npz file of a hundred inputs or so"


def _sizes(model: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """The shape of each input, 0 what is open."""
    sizes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in model.graph.input}
    return sizes | {name: list(shape) for name, shape in shapes.items() if name in sizes}


def _read(samples: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The samples of each input by its name."""
    if isinstance(samples, str | Path):
        found: Any = read_arrays(Path(samples), names[0], MOST_BYTES)
        samples = found if set(names) <= set(found) else list(found.values())
    if not isinstance(samples, Mapping):
        samples = dict(zip(names, samples if isinstance(samples, list | tuple) else [samples], strict=False))
    missing = [name for name in names if name not in samples]
    if missing:
        raise InputError("samples", "lack inputs", ", ".join(missing), f"an array each of {', '.join(names)}")
    return {name: np.asarray(samples[name], order="C") for name in names}


def _cast(arrays: Mapping[str, np.ndarray], model: Any, where: str) -> dict[str, np.ndarray]:
    """`arrays` in the types of the inputs; InputError where numbers would be lost."""
    as_numpy = onnx.helper.tensor_dtype_to_np_dtype
    types = {each.name: as_numpy(each.type.tensor_type.elem_type) for each in model.graph.input}
    for name, array in arrays.items():
        if array.dtype.kind in "fiub" and not np.can_cast(array.dtype, types[name], "same_kind"):
            raise InputError(where, f"those of input {name} have another type", array.dtype, types[name])
    # What becomes infinite is refused with other infinities.
    with np.errstate(over="ignore"):
        return {
            name: array.astype(types[name], copy=False) if array.dtype.kind in "fiub" else array
            for name, array in arrays.items()
        }


def _turns(sizes: Mapping[str, Sequence[int]], arrays: Mapping[str, np.ndarray], where: str) -> int:
    """How many times the model runs on the samples; InputError where they are none, or do not fit."""
    for name, array in arrays.items():
        if not sizes[name]:
            problem = f"input {name} is one number, and samples are along a first axis"
            raise InputError(where, problem, "no axes", "a model whose inputs have one")
        fits = [known in (0, size) for known, size in zip(sizes[name][1:], array.shape[1:], strict=False)]
        if array.ndim != len(sizes[name]) or not all(fits):
            allowed = "x".join(str(size or "any") for size in ("samples", *sizes[name][1:]))
            raise InputError(where, f"those of input {name} have another shape", array.shape, allowed)
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            problem = f"those of input {name} hold NaN or infinity, or are no numbers"
            raise InputError(where, problem, array.dtype, "finite numbers")
    turns = {divmod(len(array), sizes[name][0] or 1) for name, array in arrays.items()}
    (first, rest), *others = turns
    if others or not first or rest:
        found = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise InputError(
            where, "are not as many of each input as the model takes", found, "as many, or several times so"
        )
    return first


def _feeds(arrays: Mapping[str, np.ndarray], turns: int) -> Iterator[dict[str, np.ndarray]]:
    parts = {name: np.split(array, turns) for name, array in arrays.items()}
    return ({name: part[turn] for name, part in parts.items()} for turn in range(turns))


def _digest(model: bytes, arrays: Mapping[str, np.ndarray], turns: int) -> str:
    version = require("onnxruntime", "ort").__version__
    words = [FORM, version, INT8, turns, [[name, array.shape, str(array.dtype)] for name, array in arrays.items()]]
    parts = [json.dumps(words).encode(), model, *(array.tobytes() for array in arrays.values())]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]
