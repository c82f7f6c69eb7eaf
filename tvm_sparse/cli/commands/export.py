"""``export``: an artifact to files for C and C++ programs, or for ONNX Runtime."""

import argparse
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse import ort
from tvm_sparse.cli.without_cudnn import without_cudnn
from tvm_sparse.cudnn import library
from tvm_sparse.exporter.dynamic_section import Needs
from tvm_sparse.exporter.export import export
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.verdict import Verdict


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document: the folder, files there and their sizes, what is loaded with them, and what cuDNN is worth."""
    artifact, output = arguments.artifact, arguments.output
    with TemporaryFolder() as folder:
        used = without_cudnn(artifact, folder) if arguments.without_cudnn else artifact
        found, files = _exported(used, output)
        loads = _loaded(used, files)
        both = {"with cuDNN": artifact, "without": used} if used != artifact else {}
        verdicts = {name: _verdicts(each) for name, each in both.items()}
    return {
        "artifact": str(artifact),
        "folder": str(found),
        "files": {str(path.relative_to(found)): path.stat().st_size for path in sorted(files)},
        "loads": loads,
        "verdicts": verdicts,
    }


def _exported(artifact: Path, output: Path) -> tuple[Path, list[Path]]:
    """The folder, and what was written there."""
    if output.suffix.lower() == ".onnx":
        folder = ort.export(artifact, output).parent
        own = re.compile(rf"{re.escape(output.stem)}(-(batch|\d)[\w-]*)?\.(onnx|plan|so)|libtvm_sparse_ort\.so")
        return folder, [path for path in folder.iterdir() if own.fullmatch(path.name)]
    folder = export(artifact, output)
    return folder, [path for path in folder.rglob("*") if path.is_file()]


def _verdicts(artifact: Path) -> list[str]:
    """A line for each variant."""
    found = [each.get("verdict") for each in manifest.read(artifact)["variants"]]
    return [Verdict.from_json(each).line() for each in found if each]


def _loaded(artifact: Path, files: Iterable[Path]) -> list[str]:
    """The libraries that the system loads with those of the model, and those that the C library loads for it."""
    content = manifest.read(artifact)
    on_gpu = {"libcuda.so.1"} if content["target"]["kind"] == "cuda" else set()
    calls = {library.NAME} if content["libraries"] else set()
    return sorted(
        on_gpu.union(calls, *(Needs.of(path.read_bytes()).libraries for path in files if path.suffix == ".so"))
    )


def show(document: dict[str, Any], console: Console) -> None:
    """The models, and how to run them."""
    folder, files = document["folder"], document["files"]
    console.print(Text(f"written: {folder}"))
    for name, size_bytes in files.items():
        if name.endswith((".onnx", ".plan", ".so")):
            console.print(Text(f"  {name}: {size_bytes:,} bytes"))
    for name, lines in document["verdicts"].items():
        for line in lines:
            console.print(Text(f"{name}: {line}"))
    console.print(Text(f"libraries load: {', '.join(document['loads']) or 'none'}"))
    if "CMakeLists.txt" in files:
        source, build = shlex.quote(folder), shlex.quote(f"{folder}/build")
        console.print(Text(f"next: cmake -S {source} -B {build} && cmake --build {build}"))
    else:
        console.print(Text("next: tvm_sparse.ort.register() and session_options() in Python, see docs/deployment.md"))
