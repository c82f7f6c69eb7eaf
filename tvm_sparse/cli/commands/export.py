"""``export``: an artifact to files for C and C++ programs, or for ONNX Runtime."""

import argparse
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse import ort
from tvm_sparse.exporter.dynamic_section import Needs
from tvm_sparse.exporter.export import export


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: the folder, what was written there, with its size, and what is loaded with its libraries."""
    output = arguments.output
    if output.suffix == ".onnx":
        folder = ort.export(arguments.artifact, output).parent
        own = re.compile(rf"{re.escape(output.stem)}(-(batch|\d)[\w-]*)?\.(onnx|plan|so)|libtvm_sparse_ort\.so")
        files = [path for path in folder.iterdir() if own.fullmatch(path.name)]
    else:
        folder = export(arguments.artifact, output)
        files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        "artifact": str(arguments.artifact),
        "folder": str(folder),
        "files": {str(path.relative_to(folder)): path.stat().st_size for path in sorted(files)},
        "loads": sorted({name for path in files if path.suffix == ".so" for name in _loaded_with(path)}),
    }


def _loaded_with(library: Path) -> tuple[str, ...]:
    """The libraries that the system loads with one."""
    return Needs.of(library.read_bytes()).libraries


def show(document: dict[str, Any], console: Console) -> None:
    """The models, and how to run them."""
    folder, files = document["folder"], document["files"]
    console.print(Text(f"written: {folder}"))
    for name, size_bytes in files.items():
        if name.endswith((".onnx", ".plan", ".so")):
            console.print(Text(f"  {name}: {size_bytes:,} bytes"))
    console.print(Text(f"libraries load: {', '.join(document['loads'])}"))
    if "CMakeLists.txt" in files:
        console.print(Text(f"next: cmake -S {folder} -B {folder}/build && cmake --build {folder}/build"))
    else:
        console.print(Text("next: tvm_sparse.ort.register() and session_options() in Python, see docs/deployment.md"))
