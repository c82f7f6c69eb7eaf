"""A compiled model as a directory: libraries, named after their SHA-256, and ``manifest.json``.

There is one library, or for a `MultiShapeModel` one for each of its models.

At every moment, also after a kill, the directory is the old artifact or the new one (`replacement`). The manifest holds
the SHA-256 of every other file, checked before any of it is loaded; that finds damage, not malice. A library is code:
artifacts are loaded from where nobody but this user and root can write, unless the caller trusts those who can.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse.conv.index_check import IndexCheck
from tvm_sparse.errors import ArtifactError, UsageError, last_line
from tvm_sparse.files.ownership import exposed
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.libraries import require
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.multi_shape_model import AnyModel, MultiShapeModel
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.compatibility import device_of, why_not_here
from tvm_sparse.target.resolve import device_index


def save(model: AnyModel, directory: str | Path) -> Path:
    """Write `model` to `directory`, as ``model.save(directory)`` does; returns the directory."""
    return model.save(directory)


def load(
    directory: str | Path,
    *,
    device: str | None = None,
    cuda_graph: bool = True,
    trust: bool = False,
    sha256: str | None = None,
) -> AnyModel:
    """The model in `directory`, ready to run; needs neither torch nor the file the model came from.

    Parameters
    ----------
    directory
        What `save` wrote.
    device
        What runs it, such as ``"cuda:1"`` for the second GPU; None: the first one.
    cuda_graph
        See `CompiledModel`.
    trust
        Load it even if somebody beside this user and root could change it. It is code, and runs with this user's
        rights.
    sha256
        The artifact's SHA-256, as `compile` prints it and `verify` says it: no other artifact is loaded. None: any is.

    Raises
    ------
    UsageError
        There is no such device, or it is of another kind.
    ArtifactError
        There is no artifact, it is damaged or has another `sha256`, others could change it, another version wrote it,
        it was built for another machine, or a library that it calls is not here.
    """
    directory = Path(directory)
    while True:
        before = manifest.identity(directory)
        try:
            content = manifest.read(directory)
            if problem := manifest.other_digest(content, sha256):
                raise ArtifactError(str(directory), problem, hint="get it again from where its SHA-256 is from")
            manifest.check_versions(directory, content)
            manifest.check_system(directory, content)
            manifest.check_libraries(directory, content)
            if not trust:
                _require_private(directory, content)
            return _load(directory, content, cuda_graph, device)
        except ArtifactError:
            # Another process may have replaced the artifact since its manifest was read.
            if manifest.identity(directory) == before:
                raise


def _load(directory: Path, content: dict[str, Any], cuda_graph: bool, device: str | None) -> AnyModel:
    try:
        target = Target(content["target"])
        source = content["source"]
        file = ModelFile.from_json(source, directory) if source else None
    except (AttributeError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise manifest.damaged(directory, f"target or source is not usable: {error}") from None
    obstacle = why_not_here(target)
    if obstacle:
        raise ArtifactError(str(directory), f"does not fit this machine: {obstacle}", hint="compile the model here")
    kind = device_of(target).type
    if device not in (None, kind, f"{kind}:{device_index(device)}"):
        raise UsageError("device", "the model does not run on it", device, kind)
    libraries = content["libraries"]
    require(str(directory), libraries)

    def model(variant: dict[str, Any]) -> CompiledModel:
        signature, checks, verdict = _read_variant(directory, variant)
        code = _library(directory, variant["library"])
        found = CompiledModel(code, target, signature, variant["decisions"], cuda_graph, libraries, checks=checks)
        found.run_on(device_index(device))
        found.verdict, found.file = verdict, file
        return found

    models = {variant["name"]: model(variant) for variant in content["variants"]}
    try:
        return models[""] if "" in models else MultiShapeModel(models, content["has_batches"])
    except (IndexError, ValueError) as error:
        problem = str(error) if isinstance(error, ValueError) else "an input has no dimension for batches"
        raise manifest.damaged(directory, problem) from None


def _read_variant(
    directory: Path, variant: Mapping[str, Any]
) -> tuple[Signature, Sequence[IndexCheck], Verdict | None]:
    """Signature, index checks and verdict, as a manifest has them."""
    try:
        checks = [IndexCheck.from_json(each) for each in variant["checks"]]
        verdict = variant.get("verdict")
        return Signature.from_json(variant["signature"]), checks, Verdict.from_json(verdict) if verdict else None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise manifest.damaged(directory, f"signature, checks or verdict are not usable: {error}") from None


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
