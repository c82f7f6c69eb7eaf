"""How a compiled model becomes the directory that `artifact` describes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm

from tvm_sparse.errors import ArtifactError, BuildError, first_line
from tvm_sparse.files.staging import Staging, sweep
from tvm_sparse.runtime.artifacts import manifest, replacement
from tvm_sparse.runtime.library_file import export
from tvm_sparse.target.resolve import architecture_of, target_json


def write(model: Any, models: Mapping[str, Any], directory: str | Path) -> Path:
    """Write a model to `directory`, in the place of an older artifact of that name; returns the directory.

    `models` are the `CompiledModel` of each variant by name, or `model` alone without one.

    What a killed `write` left there or beside it is removed. Errors as of `CompiledModel.save`.
    """
    directory = Path(directory)
    if not all(each.library or isinstance(each.executable, tvm.runtime.Executable) for each in models.values()):
        raise ArtifactError(str(directory), "the model was loaded from an artifact", hint="copy that directory instead")
    try:
        replacement.require_replaceable(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        for place in (directory, directory.parent):
            sweep(place)
        # Within a folder that exists: it may be a mount, to which nothing is moved from outside in one step.
        with Staging(directory if directory.is_dir() else directory.parent) as stage:
            variants = [_variant(name, each, stage) for name, each in models.items()]
            text = json.dumps(_manifest(model, variants, stage, directory), indent=1, allow_nan=False)
            (stage / manifest.NAME).write_text(text)
            replacement.put(stage, directory)
    except OSError as error:
        hint = "check the place, its rights and its free space"
        raise ArtifactError(str(directory), f"cannot be written ({error.strerror})", hint=hint) from error
    return directory


def _export(model: Any, stage: Path) -> str:
    """Write the library of `model` into `stage`, named after its content; returns the name."""
    path = stage / "model.so"
    try:
        if model.library is not None:
            path.write_bytes(model.library.content())
        else:
            export(model.executable, path, architecture=architecture_of(model.target))
    except RuntimeError as error:
        # What the linker says follows.
        reason = first_line(RuntimeError(str(error).removeprefix("Compilation error:")))
        hint = "it needs a C compiler, gcc or clang, and room in TMPDIR"
        raise BuildError("model.so", f"cannot be linked ({reason})", hint=hint) from error
    return replacement.name_by_content(path).name


def _variant(name: str, model: Any, stage: Path) -> dict[str, Any]:
    """What the manifest says of one `CompiledModel`, whose library is written into `stage`."""
    return {
        "name": name,
        "library": _export(model, stage),
        "signature": model.signature.to_json(),
        "decisions": model.report(),
        "checks": [check.to_json() for check in model.checks],
        "verdict": None if model.verdict is None else model.verdict.to_json(),
    }


def _manifest(model: Any, variants: list[dict[str, Any]], stage: Path, directory: Path) -> dict[str, Any]:
    content = {
        "schema": manifest.SCHEMA,
        "versions": manifest.versions(),
        "system": manifest.system(architecture_of(model.target)),
        "target": target_json(model.target),
        "variants": variants,
        "has_batches": getattr(model, "has_batches", False),
        "libraries": model.libraries,
        "source": model.file.to_json(directory) if model.file is not None else {},
        "files": {path.name: manifest.sha256(path) for path in sorted(stage.iterdir())},
    }
    return {**content, "digest": manifest.digest(content)}
