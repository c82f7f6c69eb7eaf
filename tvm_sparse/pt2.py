"""Opens a .pt2 file (torch.export) without running anything that the file holds.

`torch.export.load` un-pickles: weights marked ``use_pickle``, custom objects, sample inputs of unknown types; it
also loads compiled libraries and gives shape expressions to sympy, which evaluates them as Python. So the archive is
read once into memory, everything in it is checked against a list of what is allowed, and only then does torch see it.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError  # the error only: nothing is un-pickled
from typing import Any

from tvm_sparse.errors import ModelError

# What torch.export.save writes for a model made of ordinary tensors; anything else may be code.
_ALLOWED_FILES = re.compile(
    r"models/\w+\.json|data/weights/(weight_\d+|\w+_config\.json)|data/constants/(tensor_\d+|\w+_config\.json)"
    r"|data/sample_inputs/\w+\.pt|archive_format|archive_version|byteorder|\.data/\w+|extra/.*"
)
# Registered operators only: an attribute path such as torch.load or torch.ops.load_library is a function call.
_ALLOWED_TARGETS = re.compile(
    r"torch\.ops\.[a-z]\w*\.(?!__)\w+\.(?!__)\w+|torch\.ops\.higher_order\.[a-z]\w*|_operator\.getitem"
)
_UNSAFE_HINT = "export it again with torch.export.save and ordinary dense tensors"


def load_exported_program(path: Path) -> Any:
    """The `torch.export.ExportedProgram` in `path`.

    Raises
    ------
    ModelError
        The file is damaged, was written by a torch too old, has dynamic shapes, or holds anything that could run code.
    """
    import torch

    try:
        from torch.export.pt2_archive._package import PT2ArchiveReader, load_pt2
    except ImportError:
        raise ModelError(
            str(path), "this torch cannot read .pt2 archives", torch.__version__, "2.8 or newer", "upgrade torch"
        ) from None

    data = path.read_bytes()
    try:
        with PT2ArchiveReader(io.BytesIO(data)) as archive:
            for name in archive.get_file_names():
                _check_file(path, name, archive.read_bytes(name) if name.endswith((".json", ".pt")) else b"")
        programs = load_pt2(io.BytesIO(data)).exported_programs
    except (RuntimeError, ValueError, KeyError, TypeError, AssertionError) as error:
        # torch reports a damaged archive by any of these.
        raise ModelError(
            str(path),
            f"the .pt2 file cannot be read ({_first_sentence(error)})",
            hint="write it again with torch.export.save",
        ) from None
    if len(programs) != 1:
        raise ModelError(str(path), "the file must hold one model", f"{len(programs)}", "1")
    return next(iter(programs.values()))


def _first_sentence(error: Exception) -> str:
    return str(error).split("\n")[0].split(". ")[0] or type(error).__name__


def _check_file(path: Path, name: str, content: bytes) -> None:
    """Raise ModelError unless the archive's member `name` can be read without running code."""
    import torch

    if not _ALLOWED_FILES.fullmatch(name):
        raise ModelError(str(path), "the archive holds a file that may run code", name, hint=_UNSAFE_HINT)
    if name.endswith(".json"):
        for key, value in _items(json.loads(content)):
            _check_item(path, name, key, value)
    elif name.endswith(".pt"):
        try:
            # Only tensors and plain containers pass, so torch's own fallback to pickle is never taken for these bytes.
            torch.load(io.BytesIO(content), weights_only=True)
        except (UnpicklingError, RuntimeError, EOFError) as error:
            problem = f"{name} is not plain tensors ({_first_sentence(error)})"
            raise ModelError(str(path), problem, hint=_UNSAFE_HINT) from None


def _check_item(path: Path, name: str, key: str, value: Any) -> None:
    if key == "use_pickle" and value:
        raise ModelError(str(path), f"{name} has a pickled tensor, and pickles can run code", hint=_UNSAFE_HINT)
    if key == "path_name" and not re.fullmatch(r"(weight|tensor)_\d+", str(value)):
        raise ModelError(str(path), f"{name} refers to an object that may run code", value, hint=_UNSAFE_HINT)
    if key == "target" and isinstance(value, str) and not _ALLOWED_TARGETS.fullmatch(value):
        raise ModelError(str(path), f"{name} calls a function that is no registered operator", value, hint=_UNSAFE_HINT)
    if key == "expr_str":
        raise ModelError(
            str(path), "the model has dynamic shapes", hint="export it without dynamic_shapes, once for each batch size"
        )


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Every (key, value) of nested JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _items(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _items(inner)
