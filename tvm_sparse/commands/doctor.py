"""``doctor``: what this machine and installation offer."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse import __version__, display, environment
from tvm_sparse.errors import BuildError

PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "xgboost", "onnx", "onnxruntime", "torch", "safetensors")
# Saving JSON is what tuning needs and what some versions of apache-tvm-ffi end the process in.
_SELF_CHECK = (
    "import sys; sys.modules['torch'] = None; import tvm; "
    "assert int(tvm.ir.load_json(tvm.ir.save_json(tvm.tirx.IntImm('int32', 3)))) == 3"
)
_SELF_CHECK_TIMEOUT_S = 120


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: one value a probe.

    Raises
    ------
    BuildError
        The installed TVM fails its check, so that nothing else would work; the document is shown first.
    """
    document: dict[str, Any] = {
        "tvm-sparse": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": environment.available_cores(),
        "packages": {name: _version(name) for name in PACKAGES},
        "compilers": {name: shutil.which(name) for name in ("gcc", "clang", "nvcc")},
        "self_check": _self_check(),
    }
    if document["self_check"] != "ok":
        show(document, console)
        hint = "install the pinned version: pip install 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"
        raise BuildError("TVM", "the installed version fails its check", document["self_check"], hint=hint)
    target = environment.resolve_target(arguments.target)
    document["target"] = environment.target_json(target)
    document["fingerprint"] = environment.fingerprint(target)
    return document


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _self_check() -> str:
    """``ok``, or what happened in a process of its own."""
    command = [sys.executable, "-c", _SELF_CHECK]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_SELF_CHECK_TIMEOUT_S, check=False, env=dict(os.environ)
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_SELF_CHECK_TIMEOUT_S} s"
    if result.returncode == 0:
        return "ok"
    lines = result.stderr.strip().splitlines() or ["no message"]
    return f"exit code {result.returncode}: {lines[-1]}"


def show(document: dict[str, Any], console: Console) -> None:
    """One line a probe."""
    for name, value in document.items():
        if isinstance(value, dict):
            for key, each in value.items():
                console.print(Text(f"{name} {key}: {display.cell(each)}"))
        else:
            console.print(Text(f"{name}: {display.cell(value)}"))
