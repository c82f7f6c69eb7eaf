"""An artifact as files for programs without Python: its plan, its kernels, and the C library that runs them."""

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_sparse.errors import ArtifactError
from tvm_sparse.exporter import bytecode, constants, plan_file
from tvm_sparse.exporter.bytecode import UnknownBytecode
from tvm_sparse.exporter.library import Library
from tvm_sparse.exporter.plan import Base, plan_of
from tvm_sparse.files import publish
from tvm_sparse.files.staging import Staging, sweep
from tvm_sparse.runtime import index_checks
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.target.compatibility import required_flags
from tvm_sparse.target.resolve import architecture_of, thread_count

SOURCES = Path(__file__).with_name("sources")


def export(artifact: str | Path, directory: str | Path) -> Path:
    """Write what a C or C++ program needs to run `artifact`; returns `directory`.

    That is ``model.plan`` and ``model.so``, for an artifact of several batch sizes ``model-batch8.plan`` and
    ``model-batch8.so`` for each; the C library in source, ``tvm_sparse_run``, which needs libc and POSIX threads; a
    program that uses it, ``main.c``, with its ``CMakeLists.txt``; and licences.

    Nothing of the artifact is run, so it need not be trusted.

    Parameters
    ----------
    artifact
        A folder that `save` wrote.
    directory
        A folder that does not exist, or is empty.

    Raises
    ------
    ArtifactError
        There is no artifact, it is damaged or of another version, is for a GPU, calls what is no code of its own, or
        `directory` cannot be written.
    """
    source, directory = Path(artifact), Path(directory)
    content = manifest.read(source)
    manifest.check_versions(source, content)
    manifest.check_libraries(source, content)
    target = _target(source, content)
    try:
        if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
            hint = "choose a directory that does not exist yet"
            raise ArtifactError(str(directory), "exists and is no empty directory", hint=hint)
        directory.parent.mkdir(parents=True, exist_ok=True)
        sweep(directory.parent)
        with Staging(directory.parent) as stage:
            folder = Path(shutil.copytree(SOURCES, stage / "folder"))
            for batch, name in (content["batches"] or {"": next(iter(content["files"]))}).items():
                _write(folder / (f"model-batch{batch}" if batch else "model"), source, name, content, target)
            for path in (*folder.rglob("*"), folder):
                publish.sync(path)
            # An empty folder gives way to another.
            folder.rename(directory)
    except OSError as error:
        hint = "check the place, its rights and its free space"
        raise ArtifactError(str(directory), f"cannot be written ({error.strerror})", hint=hint) from error
    return directory


def _target(source: Path, content: Mapping[str, Any]) -> Target:
    try:
        target = Target(content["target"])
    except (RuntimeError, ValueError, TypeError) as error:
        raise manifest.damaged(source, f"target is not usable: {error}") from None
    if target.kind.name != "llvm":
        hint = "compile the model for a CPU"
        raise ArtifactError(str(source), "cannot be exported", target.kind.name, "a model for a CPU", hint)
    return target


def _write(stem: Path, source: Path, name: str, content: Mapping[str, Any], target: Target) -> None:
    """The plan and the kernels of the library `name` of an artifact."""
    batch = stem.name.partition("batch")[2]
    try:
        signature = Signature.from_json(content["signature"])
        signature = signature.at_batch(int(batch)) if batch else signature
        checks = index_checks.from_json(content.get("checks", {}), int(batch or 0))
        library = Library.of((source / name).read_bytes())
        if library.unknown:
            raise UnknownBytecode(f"its code calls {', '.join(library.unknown)}")
        program = bytecode.read(library.data)
        plan = plan_of(program, signature, library.kernels)
        kernels, places = constants.in_place(program, library)
    except UnknownBytecode as error:
        hint = "run it with tvm_sparse.load"
        raise ArtifactError(str(source), f"cannot run without TVM: {error}", hint=hint) from error
    except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
        raise manifest.damaged(source, f"its signature or library is not usable: {error}") from error
    file = stem.with_suffix(".so")
    machine = architecture_of(target), str(target.attrs.get("mcpu", "")), required_flags(target)
    plan = plan.with_places(Base.CONSTANTS, places)
    data = plan_file.encoded(plan, signature, checks, (file.name, kernels), machine, thread_count(target))
    file.write_bytes(kernels)
    stem.with_suffix(".plan").write_bytes(data)
