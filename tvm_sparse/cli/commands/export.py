"""``export``: an artifact to files for C and C++ programs."""

import argparse
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse.exporter.export import export


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: the folder, and what is in it with its size."""
    folder = export(arguments.artifact, arguments.output)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "artifact": str(arguments.artifact),
        "folder": str(folder),
        "files": {str(path.relative_to(folder)): path.stat().st_size for path in files},
    }


def show(document: dict[str, Any], console: Console) -> None:
    """The models, and how to build the program that runs them."""
    folder = document["folder"]
    console.print(Text(f"written: {folder}"))
    for name, size_bytes in document["files"].items():
        if name.endswith((".plan", ".so")):
            console.print(Text(f"  {name}: {size_bytes:,} bytes"))
    console.print(Text(f"next: cmake -S {folder} -B {folder}/build && cmake --build {folder}/build"))
