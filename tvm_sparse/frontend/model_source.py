"""What kind of source this is; opens a file once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tvm_sparse.errors import ModelError

MODEL_SUFFIXES = (".onnx", ".pt2")
PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


def is_torch_module(source: Any) -> bool:
    """Whether `source` is a `torch.nn.Module`; does not load torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def is_exported_program(source: Any) -> bool:
    """Whether `source` is a `torch.export.ExportedProgram`; does not load torch to find out."""
    export = sys.modules.get("torch.export")
    return export is not None and isinstance(source, export.ExportedProgram)


def existing_file(source: Any, suffixes: tuple[str, ...]) -> Path:
    """`source` as the path of a file with one of `suffixes`.

    Raises
    ------
    ModelError
        It is no path, does not exist or has another suffix.
    """
    if not isinstance(source, (str, Path)):
        raise ModelError(
            "model", "this cannot be read", type(source).__name__, f"torch.nn.Module or {', '.join(suffixes)}"
        )
    path = Path(source)
    if path.suffix in PICKLE_SUFFIXES:
        raise ModelError(
            str(path),
            "this is a pickle, which can run code when it is opened",
            hint="load it yourself and pass the module, or write torch.export.save(torch.export.export(model, inputs), "
            "'model.pt2')",
        )
    if path.suffix not in suffixes:
        raise ModelError(str(path), "unknown kind of file", path.suffix or "no suffix", ", ".join(suffixes))
    if not path.is_file():
        raise ModelError(str(path), "no such file", hint="check the path")
    return path
