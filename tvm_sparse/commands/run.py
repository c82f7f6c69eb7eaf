"""``run``: an artifact on given inputs."""

from __future__ import annotations

import argparse
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from tvm_sparse import artifact, display
from tvm_sparse.commands import common
from tvm_sparse.errors import InputError, UsageError
from tvm_sparse.runtime import CompiledModel, TensorSpec


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: what came out, in figures; the outputs themselves go to ``--output``."""
    if arguments.output is not None and arguments.output.suffix != ".npz":
        raise UsageError("--output", "has another suffix", arguments.output, "a file ending in .npz")
    compiled = artifact.load(arguments.artifact)
    common.use_threads_of(compiled.target)
    if arguments.input is not None:
        inputs = read_inputs(arguments.input, compiled)
    else:
        inputs = common.random_inputs(compiled, arguments.seed)
    outputs = common.outputs_of(compiled, inputs)
    named = {spec.name: value for spec, value in zip(compiled.signature.outputs, outputs, strict=True)}
    if arguments.output is not None:
        _write(arguments.output, named)
    return {
        "artifact": str(arguments.artifact),
        "input": str(arguments.input) if arguments.input is not None else f"random, seed {arguments.seed}",
        "output": str(arguments.output) if arguments.output is not None else None,
        "outputs": [_summary(name, value) for name, value in named.items()],
    }


def read_inputs(path: Path, compiled: CompiledModel) -> list[np.ndarray]:
    """The arrays in `path` in the order of the model's inputs.

    Raises
    ------
    InputError
        The file is missing, damaged, or lacks an input.
    """
    specs = compiled.signature.inputs
    if not path.is_file():
        raise InputError(str(path), "no such file", hint="check the path")
    try:
        if zipfile.is_zipfile(path):
            arrays = _read_archive(path, compiled.signature.inputs)
        else:
            # Mapped first: a header may claim any size, and the file must be as long as that.
            arrays = {specs[0].name: np.array(np.load(path, mmap_mode="r", allow_pickle=False))}
    except (ValueError, OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(str(path), f"cannot be read ({error})", allowed="a .npy or .npz file of numbers") from None
    missing = [spec.name for spec in specs if spec.name not in arrays]
    if missing:
        wanted = ", ".join(map(_spec_text, specs))
        raise InputError(str(path), f"lacks input {', '.join(missing)}", ", ".join(arrays) or "nothing", wanted)
    return [arrays[spec.name] for spec in specs]


def _read_archive(path: Path, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which must not unpack to more than the model's inputs can be."""
    # Of any element type, and with room for headers, so that a wrong type or shape is named as such.
    allowed = sum(16 * math.prod(spec.shape) + 2**16 for spec in specs)
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > allowed:
        found, limit = f"{size} bytes unpacked", f"up to {allowed} bytes"
        raise InputError(str(path), "holds more than the model's inputs", found, limit, "keep only these in it")
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def _spec_text(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.shape} {spec.dtype}"


def _write(path: Path, named: dict[str, np.ndarray]) -> None:
    try:
        np.savez(path, **named)  # type: ignore[arg-type]
    except OSError as error:
        raise UsageError(str(path), f"cannot be written ({error.strerror})", hint="choose another --output") from None


def _summary(name: str, value: np.ndarray) -> dict[str, Any]:
    finite = value[np.isfinite(value)]
    return {
        "name": name,
        "shape": list(value.shape),
        "dtype": str(value.dtype),
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "mean": float(finite.mean()) if finite.size else None,
        "not_finite": int(value.size - finite.size),
        "largest_at": [int(index) for index in np.unravel_index(value.argmax(), value.shape)] if value.size else None,
    }


def show(document: dict[str, Any], console: Console) -> None:
    """One row an output."""
    columns = ("name", "shape", "dtype", "min", "max", "mean", "not_finite", "largest_at")
    headings = {column: column.replace("_", " ") for column in columns}
    console.print(display.table("Outputs", document["outputs"], headings))
    if document["output"] is not None:
        console.print(Text(f"written: {document['output']}"))
