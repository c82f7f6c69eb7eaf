"""A compiled model as a directory: libraries, named after their SHA-256, and ``manifest.json``.

There is one library, or for a `BatchedModel` one for each batch size.

At every moment, also after a kill, the directory is the old artifact or the new one (`replacement`). The manifest holds
the SHA-256 of every other file, checked before any of it is loaded; that finds damage, not malice. A library is code:
artifacts are loaded from where nobody but this user and root can write, unless the caller trusts those who can.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse.errors import ArtifactError, BuildError, first_line, last_line
from tvm_sparse.files.ownership import exposed
from tvm_sparse.files.staging import Staging, sweep
from tvm_sparse.runtime import index_checks
from tvm_sparse.runtime.artifacts import manifest, replacement
from tvm_sparse.runtime.batched_model import AnyModel, BatchedModel
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.libraries import require
from tvm_sparse.runtime.library_file import export
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.resolve import target_json


def save(model: AnyModel, directory: str | Path) -> Path:
    """Write `model` to `directory`, in the place of an older artifact of that name; returns the directory.

    Files in it that are not of an artifact stay as they are. What a killed `save` left there or beside it is removed.

    Raises
    ------
    ArtifactError
        `directory` exists and is no artifact, is a link, cannot be written, or `model` was itself loaded from one.
    BuildError
        The library cannot be linked.
    """
    directory = Path(directory)
    models = model.models if isinstance(model, BatchedModel) else {0: model}
    if not all(each.library or isinstance(each.executable, tvm.runtime.Executable) for each in models.values()):
        raise ArtifactError(str(directory), "the model was loaded from an artifact", hint="copy that directory instead")
    try:
        replacement.require_replaceable(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        for place in (directory, directory.parent):
            sweep(place)
        # Within a folder that exists: it may be a mount, to which nothing is moved from outside in one step.
        with Staging(directory if directory.is_dir() else directory.parent) as stage:
            names = {str(batch): _export(each, stage) for batch, each in models.items()}
            batches = names if isinstance(model, BatchedModel) else {}
            text = json.dumps(_manifest(model, models, batches, stage, directory), indent=1, allow_nan=False)
            (stage / manifest.NAME).write_text(text)
            replacement.put(stage, directory)
    except OSError as error:
        hint = "check the place, its rights and its free space"
        raise ArtifactError(str(directory), f"cannot be written ({error.strerror})", hint=hint) from error
    return directory


def load(directory: str | Path, cuda_graph: bool = True, trust: bool = False) -> AnyModel:
    """The model in `directory`, ready to run; needs neither torch nor the file the model came from.

    Parameters
    ----------
    directory
        What `save` wrote.
    cuda_graph
        See `CompiledModel`.
    trust
        Load it also where somebody beside this user and root could change it: it is code, and runs with this user's
        rights.

    Raises
    ------
    ArtifactError
        There is no artifact, it is damaged, others could change it, another version wrote it, it was built for another
        machine, or a library that it calls is not here.
    """
    directory = Path(directory)
    while True:
        before = manifest.identity(directory)
        try:
            content = manifest.read(directory)
            manifest.check_versions(directory, content)
            manifest.check_libraries(directory, content)
            if not trust:
                _require_private(directory, content)
            return _load(directory, content, cuda_graph)
        except ArtifactError:
            # Another process may have replaced the artifact since its manifest was read.
            if manifest.identity(directory) == before:
                raise


def _load(directory: Path, content: dict[str, Any], cuda_graph: bool) -> AnyModel:
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
        found = CompiledModel(*parts, checks=checks[batch])
        found.verdict, found.file = verdicts.get(str(batch)), file
        return found

    try:
        verdicts = {batch: Verdict.from_json(each) for batch, each in content.get("verdicts", {}).items()}
        source = content.get("source")
        file = ModelFile.from_json(source, directory) if source else None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise manifest.damaged(directory, f"verdicts or source are not usable: {error}") from None
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


def _require_private(directory: Path, content: dict[str, Any]) -> None:
    try:
        problems = [exposed(directory / name) for name in ("", manifest.NAME, *content["files"])]
    except OSError as error:
        raise manifest.damaged(directory, f"a file is missing ({error.strerror})") from None
    if any(problems):
        problem = f"is code that others could change ({next(filter(None, problems))})"
        hint = "copy it to a folder of your own, or load it with trust=True (--trust) if you trust them"
        raise ArtifactError(str(directory), problem, hint=hint)


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
            export(model.executable, path)
    except RuntimeError as error:
        # What the linker says follows.
        reason = first_line(RuntimeError(str(error).removeprefix("Compilation error:")))
        hint = "it needs a C compiler, gcc or clang, and room in TMPDIR"
        raise BuildError("model.so", f"cannot be linked ({reason})", hint=hint) from error
    return replacement.name_by_content(path).name


def _manifest(
    model: AnyModel, models: Mapping[int, CompiledModel], batches: dict[str, str], stage: Path, directory: Path
) -> dict[str, Any]:
    content = {
        "schema": manifest.SCHEMA,
        "versions": manifest.versions(),
        "system": manifest.system(),
        "target": target_json(model.target),
        "signature": model.signature.to_json(),
        "batches": batches,
        "decisions": model.report(),
        "libraries": model.libraries,
        "checks": index_checks.to_json(models),
        "verdicts": {str(batch): each.verdict.to_json() for batch, each in models.items() if each.verdict is not None},
        "source": model.file.to_json(directory) if model.file is not None else {},
        "files": {path.name: manifest.sha256(path) for path in sorted(stage.iterdir())},
    }
    return {**content, "digest": manifest.digest(content)}
