"""A compiled model as a directory: libraries, named after their SHA-256, and ``manifest.json``.

There is one library, or for a `BatchedModel` one for each batch size.

A new artifact is written beside its place and moved there whole. An older one is replaced by putting the new libraries
beside the old ones, then the new manifest in place of the old: at every moment, also after a kill, the directory is the
old artifact or the new one. The manifest holds the SHA-256 of every other file, checked before any of it is loaded;
that finds damage, not malice. A library is code, so load artifacts only from those you trust.
"""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse.errors import ArtifactError, BuildError, first_line, last_line
from tvm_sparse.runtime import index_checks, manifest
from tvm_sparse.runtime.batched_model import AnyModel, BatchedModel
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.libraries import require
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.resolve import target_json


def save(model: AnyModel, directory: str | Path) -> Path:
    """Write `model` to `directory`, in the place of an older artifact of that name; returns the directory.

    Raises
    ------
    ArtifactError
        `directory` exists and is no artifact, cannot be written, or `model` was itself loaded from one.
    BuildError
        The library cannot be linked.
    """
    directory = Path(directory)
    models = model.models if isinstance(model, BatchedModel) else {0: model}
    if not all(each.library or isinstance(each.executable, tvm.runtime.Executable) for each in models.values()):
        raise ArtifactError(str(directory), "the model was loaded from an artifact", hint="copy that directory instead")
    if directory.exists() and not _is_replaceable(directory):
        raise ArtifactError(
            str(directory), "exists and is no artifact", hint="choose a directory that does not exist yet"
        )
    stage = directory.with_name(f".{directory.name}.{os.getpid()}.staging")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        stage.mkdir()
        names = {str(batch): _export(each, stage) for batch, each in models.items()}
        batches = names if isinstance(model, BatchedModel) else {}
        text = json.dumps(_manifest(model, batches, stage), indent=1, allow_nan=False)
        _write(stage / manifest.NAME, text.encode())
        _publish(stage, directory)
    except OSError as error:
        raise ArtifactError(
            str(directory), f"cannot be written ({error})", hint="check the place and its rights"
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return directory


def load(directory: str | Path, cuda_graph: bool = True) -> AnyModel:
    """The model in `directory`, ready to run; needs neither torch nor the file the model came from.

    `cuda_graph`: see `CompiledModel`.

    Raises
    ------
    ArtifactError
        There is no artifact, it is damaged, another version wrote it, it was built for another machine, or a library
        that it calls is not here.
    """
    directory = Path(directory)
    while True:
        before = manifest.identity(directory)
        try:
            return _load(directory, manifest.read(directory), cuda_graph)
        except ArtifactError:
            # Another process may have replaced the artifact since its manifest was read.
            if manifest.identity(directory) == before:
                raise


def _load(directory: Path, content: dict[str, Any], cuda_graph: bool) -> AnyModel:
    manifest.check_versions(directory, content)
    manifest.check_libraries(directory, content)
    try:
        target = Target(content["target"])
        signature = Signature.from_json(content["signature"])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise manifest.damaged(directory, f"target or signature is not usable: {error}") from None
    obstacle = why_not_here(target)
    if obstacle:
        raise ArtifactError(str(directory), f"does not fit this machine: {obstacle}", hint="compile the model here")
    decisions, batches, libraries = content["decisions"], content["batches"], content.get("libraries", {})
    require(str(directory), libraries)

    def model(name: str, own: Signature, rows: list[dict[str, Any]], batch: int) -> CompiledModel:
        parts = (_library(directory, name), target, own, rows, cuda_graph, libraries)
        return CompiledModel(*parts, checks=checks[batch])

    try:
        checks = {each: index_checks.from_json(content.get("checks", {}), each) for each in (0, *map(int, batches))}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise manifest.damaged(directory, f"checks are not usable: {error}") from None
    if not batches:
        (name,) = content["files"]
        return model(name, signature, decisions, 0)
    models = {}
    for size, name in batches.items():
        rows = [{k: v for k, v in row.items() if k != "batch"} for row in decisions if row.get("batch") == int(size)]
        models[int(size)] = model(name, signature.at_batch(int(size)), rows, int(size))
    return BatchedModel(models)


def _library(directory: Path, name: str) -> tvm.runtime.Module:
    try:
        return tvm.runtime.load_module(str((directory / name).resolve()))
    except (RuntimeError, ValueError) as error:
        hint = "compile the model here, onto a file system that allows execution"
        raise ArtifactError(str(directory), f"cannot be loaded ({last_line(error)})", hint=hint) from error


def _export(model: CompiledModel, stage: Path) -> str:
    """Write the library of `model` into `stage`, named after its content; returns the name."""
    path = stage / "model.so"
    try:
        if model.library is not None:
            path.write_bytes(model.library.content())
        else:
            model.executable.export_library(str(path))
    except RuntimeError as error:
        hint = "it needs a C compiler: install gcc or clang"
        raise BuildError("model.so", f"cannot be linked ({first_line(error)})", hint=hint) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path.rename(stage / f"model-{manifest.sha256(path)[:16]}.so").name


def _manifest(model: AnyModel, batches: dict[str, str], stage: Path) -> dict[str, Any]:
    content = {
        "schema": manifest.SCHEMA,
        "versions": manifest.versions(),
        "system": manifest.system(),
        "target": target_json(model.target),
        "signature": model.signature.to_json(),
        "batches": batches,
        "decisions": model.report(),
        "libraries": model.libraries,
        "checks": index_checks.to_json(model.models if isinstance(model, BatchedModel) else {0: model}),
        "files": {path.name: manifest.sha256(path) for path in sorted(stage.iterdir())},
    }
    return {**content, "digest": manifest.digest(content)}


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _is_replaceable(directory: Path) -> bool:
    return directory.is_dir() and ((directory / manifest.NAME).is_file() or not any(directory.iterdir()))


def _publish(stage: Path, directory: Path) -> None:
    """Make `stage` the artifact in `directory`; of an older one there, what its manifest lists is removed."""
    if not directory.exists() or not any(directory.iterdir()):
        stage.rename(directory)
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        # Only one process at a time replaces what is in a directory.
        fcntl.flock(handle, fcntl.LOCK_EX)
        old = _listed_files(directory)
        new = {path.name for path in stage.iterdir()} - {manifest.NAME}
        for name in new:
            (stage / name).replace(directory / name)
        (stage / manifest.NAME).replace(directory / manifest.NAME)
        for name in old - new:
            (directory / name).unlink(missing_ok=True)
    finally:
        os.close(handle)


def _listed_files(directory: Path) -> set[str]:
    """The libraries of the artifact in `directory`; none where it has no manifest, or a damaged one."""
    try:
        files = manifest.read(directory)["files"]
    except ArtifactError:
        return set()
    return {name for name in files if manifest.LIBRARY.fullmatch(name)}
