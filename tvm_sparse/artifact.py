"""A compiled model as a directory: ``model.so`` and ``manifest.json``.

Writing happens in a staging directory beside the target, the manifest last, then one rename: a reader sees a whole
artifact or none. The manifest holds the SHA-256 of every other file, checked before any of it is loaded; that finds
damage, not malice. A library is code, so load artifacts only from those you trust.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

import tvm_sparse
from tvm_sparse import environment
from tvm_sparse.errors import ArtifactError, BuildError
from tvm_sparse.runtime import CompiledModel, Signature, why_not_here

SCHEMA = 1
LIBRARY, MANIFEST = "model.so", "manifest.json"
_FIELDS = {
    "schema": int,
    "versions": dict,
    "system": str,
    "target": dict,
    "signature": dict,
    "decisions": list,
    "files": dict,
}
# A library calls into TVM by addresses that no other version promises.
_MUST_MATCH = ("tvm",)


def save(model: CompiledModel, directory: str | Path) -> Path:
    """Write `model` to `directory`, in the place of an older artifact of that name; returns the directory.

    Raises
    ------
    ArtifactError
        `directory` exists and is no artifact, cannot be written, or `model` was itself loaded from one.
    BuildError
        The library cannot be linked.
    """
    directory = Path(directory)
    if not isinstance(model.executable, tvm.runtime.Executable):
        raise ArtifactError(str(directory), "the model was loaded from an artifact", hint="copy that directory instead")
    if directory.exists() and not _is_replaceable(directory):
        raise ArtifactError(
            str(directory), "exists and is no artifact", hint="choose a directory that does not exist yet"
        )
    stage = directory.with_name(f".{directory.name}.{os.getpid()}.staging")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        stage.mkdir()
        _export(model, stage / LIBRARY)
        manifest = json.dumps(_manifest(model, stage), indent=1, allow_nan=False)
        _write(stage / MANIFEST, manifest.encode())
        _publish(stage, directory)
    except OSError as error:
        raise ArtifactError(
            str(directory), f"cannot be written ({error})", hint="check the place and its rights"
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return directory


def load(directory: str | Path) -> CompiledModel:
    """The model in `directory`, ready to run; needs neither torch nor the file the model came from.

    Raises
    ------
    ArtifactError
        There is no artifact, it is damaged, another version wrote it, or it was built for another machine.
    """
    directory = Path(directory)
    manifest = _read_manifest(directory)
    _check_versions(directory, manifest)
    _check_files(directory, manifest["files"])
    try:
        target = Target(manifest["target"])
        signature = Signature.from_json(manifest["signature"])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise _damaged(directory, f"target or signature is not usable: {error}") from None
    obstacle = why_not_here(target)
    if obstacle:
        raise ArtifactError(str(directory), f"does not fit this machine: {obstacle}", hint="compile the model here")
    module = tvm.runtime.load_module(str((directory / LIBRARY).resolve()))
    return CompiledModel(module, target, signature, manifest["decisions"])


def _export(model: CompiledModel, path: Path) -> None:
    try:
        model.executable.export_library(str(path))
    except RuntimeError as error:
        hint = "it needs a C compiler: install gcc or clang"
        raise BuildError("model.so", f"cannot be linked ({str(error).splitlines()[0]})", hint=hint) from error


def _manifest(model: CompiledModel, stage: Path) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "versions": _versions(),
        "system": _system(),
        "target": environment.target_json(model.target),
        "signature": model.signature.to_json(),
        "decisions": model.report(),
        "files": {path.name: _sha256(path) for path in sorted(stage.iterdir())},
    }


def _versions() -> dict[str, str]:
    return {
        "tvm_sparse": tvm_sparse.__version__,
        "tvm": metadata.version("apache-tvm"),
        "tvm_ffi": metadata.version("apache-tvm-ffi"),
    }


def _system() -> str:
    return f"{platform.system()}-{platform.machine()}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _is_replaceable(directory: Path) -> bool:
    return directory.is_dir() and ((directory / MANIFEST).is_file() or not any(directory.iterdir()))


def _publish(stage: Path, directory: Path) -> None:
    """Move `stage` to `directory`; what was there is removed once the new one is in its place."""
    if not directory.exists():
        stage.rename(directory)
        return
    old = stage.with_suffix(".old")
    directory.rename(old)
    stage.rename(directory)
    shutil.rmtree(old)


def _read_manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
    except OSError as error:
        raise ArtifactError(str(directory), f"is no artifact ({error.strerror}: {MANIFEST})") from None
    except ValueError as error:
        raise _damaged(directory, f"{MANIFEST} is not JSON: {error}") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise ArtifactError(
            str(directory), "was written by a newer tvm-sparse", f"schema {schema}", f"up to {SCHEMA}", "upgrade"
        )
    for name, kind in _FIELDS.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise _damaged(directory, f"{MANIFEST} has no usable field {name!r}")
    return manifest


def _check_versions(directory: Path, manifest: dict[str, Any]) -> None:
    here = _versions()
    for name in _MUST_MATCH:
        if manifest["versions"].get(name) != here[name]:
            raise ArtifactError(
                str(directory),
                f"was built with another {name}",
                manifest["versions"].get(name),
                here[name],
                "compile again",
            )
    if manifest["system"] != _system():
        raise ArtifactError(str(directory), "was built for another system", manifest["system"], _system())


def _check_files(directory: Path, files: dict[str, str]) -> None:
    if set(files) != {LIBRARY}:
        raise _damaged(directory, f"{MANIFEST} must list {LIBRARY} and nothing else")
    for name, expected in files.items():
        path = directory / name
        if not path.is_file():
            raise _damaged(directory, f"{name} is missing")
        if _sha256(path) != expected:
            raise _damaged(directory, f"{name} is not the file that was saved, its SHA-256 differs")


def _damaged(directory: Path, problem: str) -> ArtifactError:
    return ArtifactError(str(directory), f"is damaged ({problem})", hint="save the model again")
