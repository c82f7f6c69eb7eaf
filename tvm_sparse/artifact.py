"""A compiled model as a directory: a library, named after its SHA-256, and ``manifest.json``.

A new artifact is written beside its place and moved there whole. An older one is replaced by putting the new library
beside the old one, then the new manifest in place of the old: at every moment, also after a kill, the directory is the
old artifact or the new one. The manifest holds the SHA-256 of every other file, checked before any of it is loaded;
that finds damage, not malice. A library is code, so load artifacts only from those you trust.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

import tvm_sparse
from tvm_sparse import environment
from tvm_sparse.errors import ArtifactError, BuildError
from tvm_sparse.runtime import CompiledModel, Signature, why_not_here

SCHEMA = 2
MANIFEST = "manifest.json"
_LIBRARY = re.compile(r"model(-[0-9a-f]+)?\.so")
_FIELDS = {
    "schema": int,
    "versions": dict,
    "system": str,
    "target": dict,
    "signature": dict,
    "decisions": list,
    "files": dict,
    "digest": str,
}


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
        _export(model, stage)
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
    while True:
        before = _manifest_identity(directory)
        try:
            return _load(directory, _read_manifest(directory))
        except ArtifactError:
            # Another process may have replaced the artifact since its manifest was read.
            if _manifest_identity(directory) == before:
                raise


def _manifest_identity(directory: Path) -> tuple[int, int] | None:
    """Changes whenever the artifact is replaced; None where there is none."""
    try:
        found = (directory / MANIFEST).stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _load(directory: Path, manifest: dict[str, Any]) -> CompiledModel:
    _check_versions(directory, manifest)
    library = _checked_library(directory, manifest["files"])
    try:
        target = Target(manifest["target"])
        signature = Signature.from_json(manifest["signature"])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise _damaged(directory, f"target or signature is not usable: {error}") from None
    obstacle = why_not_here(target)
    if obstacle:
        raise ArtifactError(str(directory), f"does not fit this machine: {obstacle}", hint="compile the model here")
    try:
        module = tvm.runtime.load_module(str(library.resolve()))
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        hint = "compile the model here, onto a file system that allows execution"
        raise ArtifactError(str(directory), f"cannot be loaded ({reason})", hint=hint) from error
    return CompiledModel(module, target, signature, manifest["decisions"])


def _export(model: CompiledModel, stage: Path) -> None:
    """Write the library of `model` into `stage`, named after its content."""
    path = stage / "model.so"
    try:
        model.executable.export_library(str(path))
    except RuntimeError as error:
        hint = "it needs a C compiler: install gcc or clang"
        raise BuildError("model.so", f"cannot be linked ({str(error).splitlines()[0]})", hint=hint) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.rename(stage / f"model-{_sha256(path)[:16]}.so")


def _manifest(model: CompiledModel, stage: Path) -> dict[str, Any]:
    manifest = {
        "schema": SCHEMA,
        "versions": _versions(),
        "system": _system(),
        "target": environment.target_json(model.target),
        "signature": model.signature.to_json(),
        "decisions": model.report(),
        "files": {path.name: _sha256(path) for path in sorted(stage.iterdir())},
    }
    return {**manifest, "digest": digest(manifest)}


def digest(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's other fields."""
    others = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


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
    """Make `stage` the artifact in `directory`; of an older one there, what its manifest lists is removed."""
    if not directory.exists() or not any(directory.iterdir()):
        stage.rename(directory)
        return
    with _locked(directory):
        old = set(_listed_files(directory))
        new = {path.name for path in stage.iterdir()} - {MANIFEST}
        for name in new:
            (stage / name).replace(directory / name)
        (stage / MANIFEST).replace(directory / MANIFEST)
        for name in old - new:
            (directory / name).unlink(missing_ok=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Only one process at a time replaces what is in `directory`."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _listed_files(directory: Path) -> list[str]:
    """The libraries of the artifact in `directory`; none where it has no manifest, or a damaged one."""
    try:
        files = _read_manifest(directory)["files"]
    except ArtifactError:
        return []
    return [name for name in files if _LIBRARY.fullmatch(name)]


def _read_manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
    except OSError as error:
        raise ArtifactError(str(directory), f"is no artifact ({error.strerror}: {MANIFEST})") from None
    except ValueError as error:
        raise _damaged(directory, f"{MANIFEST} is not JSON: {error}") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        age, hint = ("newer", "upgrade") if schema > SCHEMA else ("older", "compile the model again")
        raise ArtifactError(
            str(directory), f"was written by a {age} tvm-sparse", f"schema {schema}", f"schema {SCHEMA}", hint
        )
    for name, kind in _FIELDS.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise _damaged(directory, f"{MANIFEST} has no usable field {name!r}")
    if manifest["digest"] != digest(manifest):
        raise _damaged(directory, f"{MANIFEST} was changed after it was saved")
    return manifest


def _check_versions(directory: Path, manifest: dict[str, Any]) -> None:
    # A library calls into TVM by addresses that no other version promises.
    found, here = manifest["versions"].get("tvm"), _versions()["tvm"]
    if found != here:
        raise ArtifactError(str(directory), "was built with another tvm", found, here, "compile again")
    if manifest["system"] != _system():
        raise ArtifactError(str(directory), "was built for another system", manifest["system"], _system())


def _checked_library(directory: Path, files: dict[str, str]) -> Path:
    """The artifact's library, which is the one that was saved."""
    if len(files) != 1 or not all(_LIBRARY.fullmatch(name) for name in files):
        raise _damaged(directory, f"{MANIFEST} must list one library model-*.so and nothing else")
    ((name, expected),) = files.items()
    path = directory / name
    try:
        found = _sha256(path)
    except OSError as error:
        raise _damaged(directory, f"{name} is missing ({error.strerror})") from None
    if found != expected:
        raise _damaged(directory, f"{name} is not the file that was saved, its SHA-256 differs")
    return path


def _damaged(directory: Path, problem: str) -> ArtifactError:
    return ArtifactError(str(directory), f"is damaged ({problem})", hint="save the model again")
