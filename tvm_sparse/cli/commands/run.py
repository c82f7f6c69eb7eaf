"""``run``: an artifact on given inputs."""

import argparse
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rich.console import Console
from rich.text import Text

from tvm_sparse.compiler.checking.random_inputs import outputs_of, random_inputs
from tvm_sparse.display import tables
from tvm_sparse.errors import BuildError, UsageError, last_line
from tvm_sparse.files import publish
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.gpu.gpu_failures import gpu_failure
from tvm_sparse.runtime.input_files import read_inputs
from tvm_sparse.runtime.multi_shape_model import AnyModel, MultiShapeModel


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: what came out, in figures; the outputs themselves go to ``--output``."""
    if arguments.output is not None and arguments.output.suffix != ".npz":
        raise UsageError("--output", "has another suffix", arguments.output, "a file ending in .npz")
    compiled = artifact.load(arguments.artifact, trust=arguments.trust)
    if arguments.input is not None:
        inputs = read_inputs(arguments.input, compiled)
    else:
        inputs = random_inputs(compiled.signature.inputs, arguments.seed)
    outputs = _outputs(arguments.artifact, compiled, inputs)
    named = {spec.name: value for spec, value in zip(compiled.signature.outputs, outputs, strict=True)}
    if arguments.output is not None:
        _write(arguments.output, named)
    return {
        "artifact": str(arguments.artifact),
        "variants": list(compiled.models) if isinstance(compiled, MultiShapeModel) else [],
        "input": str(arguments.input) if arguments.input is not None else f"random, seed {arguments.seed}",
        "output": str(arguments.output) if arguments.output is not None else None,
        "outputs": [_summary(name, value) for name, value in named.items()],
    }


def _outputs(path: Path, compiled: AnyModel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    try:
        return outputs_of(compiled, inputs)
    except (RuntimeError, ValueError, TypeError) as error:
        # As where a manifest, made by hand, does not say what the library takes.
        hint = "compile the model again"
        raise gpu_failure(error) or BuildError(str(path), f"cannot be run ({last_line(error)})", hint=hint) from error


def _write(path: Path, named: dict[str, np.ndarray]) -> None:
    if path.exists() and not path.is_file():
        raise UsageError(str(path), "is no regular file", hint="choose another --output")
    try:
        with publish.replaced(path) as file:
            _write_arrays(file, named)
    except OSError as error:
        raise UsageError(str(path), f"cannot be written ({error.strerror})", hint="choose another --output") from None


def _write_arrays(file: BinaryIO, named: dict[str, np.ndarray]) -> None:
    """As `numpy.savez`, which takes no array of the name of one of its own arguments."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in named.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(value))


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
    """What the artifact holds, and one row an output."""
    if document["variants"]:
        console.print(Text(f"compiled for: {'; '.join(document['variants'])}"))
    columns = ("name", "shape", "dtype", "min", "max", "mean", "not_finite", "largest_at")
    headings = {column: column.replace("_", " ") for column in columns}
    console.print(tables.TableView("Outputs", document["outputs"], headings))
    if document["output"] is not None:
        console.print(Text(f"written: {document['output']}"))
