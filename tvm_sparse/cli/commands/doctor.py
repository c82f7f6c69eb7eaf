"""``doctor``: what this machine and installation offer, what works with it, and what to install for the rest.

Nothing here raises, whatever is broken: a report must come out. What may end the process runs in one of its own.
"""

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse.cudnn import library
from tvm_sparse.display import tables
from tvm_sparse.errors import BuildError
from tvm_sparse.target.cpu import available_cores
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu_driver import gpu_property
from tvm_sparse.target.resolve import resolve_target, target_json
from tvm_sparse.version import __version__

# Packages that install the module xgboost; the first is the one that this package asks for.
XGBOOSTS = ("xgboost-cpu", "xgboost")
PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", *XGBOOSTS, "onnx", "onnxruntime", "torch")
# In the order in which TVM looks for one that links; it asks $CXX and $CC first.
LINKERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
_TIMEOUT_S = 120
_PINNED = "pip install 'apache-tvm==0.27.0.post1' 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: one value a probe, and what works."""
    document: dict[str, Any] = {
        "tvm-sparse": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": available_cores(),
        "packages": {name: _version(name) for name in PACKAGES},
        "compilers": {name: shutil.which(name) for name in ("gcc", "clang", "nvcc")},
        "linker": _linker(),
        "gpu": {field: gpu_property(field) for field in ("name", "compute_cap", "driver_version")},
        "cudnn": _self_check("cudnn"),
        "self_check": _self_check("ffi"),
    }
    # Where saving JSON ends the process, nothing else can be asked of TVM.
    if document["self_check"] == "ok":
        document["build_check"] = _self_check("build")
        document["tvm_cuda"] = _self_check("cuda")
        target = resolve_target(arguments.target)
        document["target"] = target_json(target)
        document["fingerprint"] = fingerprint_of(target)
        document["vector_floats"] = CpuInfo.of(target).lanes if target.kind.name == "llvm" else None
    document["abilities"] = abilities(document)
    document["warnings"] = warnings(document["packages"])
    return document


def abilities(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a user may want: whether it works, from the probes of `document`; where not, why and what to install."""
    packages = document["packages"]
    is_sound, why = document["self_check"] == "ok", document["self_check"]
    builds = is_sound and document["build_check"] == "ok"
    why_no_build = document.get("build_check", why)
    linker = document["linker"] is not None
    found = [
        _ability("build and run kernels on this processor", builds, why_no_build, _PINNED),
        _ability(
            "tune and save models",
            builds and linker and any(packages[name] is not None for name in XGBOOSTS),
            why_no_build if not builds else "no C compiler" if not linker else "no xgboost",
            "gcc (apt-get install gcc), and: pip install tvm-sparse",
        ),
    ]
    # None of a GPU, and where TVM does not work.
    if (floats := document.get("vector_floats")) is not None:
        why = f"its vectors have {floats} floats, and estimates were measured for 8 (AVX2) and 16 (AVX-512)"
        what = "know how long kernels take on this processor before they are measured"
        found.append(_ability(what, floats >= 8, why, "measurements: tune, or optimize"))
    found += [
        _ability(what, packages[name] is not None, f"{name} is not installed", f"pip install {install}")
        for what, name, install in (
            ("read .onnx files", "onnx", "'tvm-sparse[onnx]'"),
            ("take torch modules and .pt2 files", "torch", "'tvm-sparse[torch]'"),
            ("compare and time against ONNX Runtime", "onnxruntime", "onnxruntime"),
        )
    ]
    return [*found, *_gpu_abilities(document, is_sound, why)]


def warnings(packages: Mapping[str, str | None]) -> list[str]:
    """What works, but may soon not: a sentence each."""
    if any(packages[name] is None for name in XGBOOSTS):
        return []
    both, ours = " and ".join(XGBOOSTS), XGBOOSTS[0]
    what = f"{both} are both installed and overwrite each other's files, so removing one breaks the other"
    return [f"{what}; run: pip uninstall -y {' '.join(XGBOOSTS)} && pip install {ours}"]


def _gpu_abilities(document: Mapping[str, Any], is_sound: bool, why: str) -> list[dict[str, Any]]:
    has_compiler = document["compilers"]["nvcc"] is not None or _has_nvrtc()
    gpu = document["gpu"]["name"]
    state = document.get("tvm_cuda", "")
    if gpu is None:
        reason, install = "nvidia-smi finds no GPU", "an NVIDIA driver, on a machine with a GPU"
    elif "runtime" not in state:
        reason, install = "TVM cannot load CUDA's libraries", "CUDA 13: pip install 'tvm-sparse[cuda]'"
    else:
        reason, install = f"TVM finds no device ({state})", "a driver that fits the toolkit"
    return [
        _ability(
            "build CUDA kernels",
            is_sound and has_compiler,
            why if not is_sound else "neither nvcc nor NVRTC",
            "nvcc on PATH, or: pip install 'tvm-sparse[cuda]'",
        ),
        _ability("run on a GPU", is_sound and "device" in state and gpu is not None, reason, install),
        _cudnn_ability(document["cudnn"]),
    ]


def _cudnn_ability(found: str) -> dict[str, Any]:
    """`found` is a version, ``none`` or how the check ended."""
    reason = f"it does not load ({found})" if found != "none" else library.NOT_FOUND
    return _ability("compute dense layers by cuDNN, and compare with it", found[:1].isdigit(), reason, library.INSTALL)


def _ability(what: str, works: bool, why_not: str, install: str) -> dict[str, Any]:
    return {"what": what, "works": works} | ({} if works else {"why_not": why_not, "install": install})


def _has_nvrtc() -> bool:
    return importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _linker() -> str | None:
    named = os.environ.get("CXX") or os.environ.get("CC")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, LINKERS)), None)


def _self_check(name: str) -> str:
    """What a check of `tvm_sparse.cli.self_check` prints, ``ok`` if that is nothing, or how it ended."""
    command = [sys.executable, "-m", "tvm_sparse.cli.self_check", name]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_TIMEOUT_S} s"
    if result.returncode == 0:
        return result.stdout.strip() or "ok"
    lines = result.stderr.strip().splitlines() or ["no message"]
    return f"exit code {result.returncode}: {lines[-1]}"


def failure(document: Mapping[str, Any]) -> BuildError | None:
    """The installed TVM fails a check, so that nothing else would work."""
    for check in ("self_check", "build_check"):
        found = document.get(check, "ok")
        if found != "ok":
            hint = "install gcc" if check == "build_check" and document["linker"] is None else f"run: {_PINNED}"
            return BuildError("TVM", f"the installed version fails its {check}", found, hint=hint)
    return None


def show(document: dict[str, Any], console: Console) -> None:
    """One line a probe, then what works, what does not, and warnings."""
    for name, value in document.items():
        if name in ("abilities", "warnings"):
            continue
        if isinstance(value, dict):
            for key, each in value.items():
                console.print(Text(f"{name} {key}: {tables.cell(each)}"))
        else:
            console.print(Text(f"{name}: {tables.cell(value)}"))
    console.print()
    for ability in document["abilities"]:
        if ability["works"]:
            console.print(Text(f"works: {ability['what']}"))
        else:
            console.print(Text(f"does not work: {ability['what']}; {ability['why_not']}; needs {ability['install']}"))
    for warning in document["warnings"]:
        console.print(Text(f"warning: {warning}"))
