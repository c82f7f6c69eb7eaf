"""Where an artifact may be put, and how it takes the place of an older one.

A new folder gets its name when it is whole. In one that exists, the new libraries are put beside the old ones, then the
new manifest in the place of the old, then the old libraries go: at every moment, also after a kill, the manifest there
lists what is there. Libraries are named after their content, so none is ever overwritten by another.
"""

import re
from pathlib import Path

from tvm_sparse.errors import ArtifactError
from tvm_sparse.files import publish
from tvm_sparse.files.locks import open_locked
from tvm_sparse.files.staging import is_staging
from tvm_sparse.runtime.artifacts import manifest

# Held while the files of a folder are replaced.
_LOCK = ".tvm-sparse-lock"
_NAME_DIGITS = 16
_NAMED = re.compile(rf"model-([0-9a-f]{{{_NAME_DIGITS}}})\.so")


def name_by_content(library: Path) -> Path:
    """Rename `library` to what a library of its content is called; returns the new path."""
    return library.rename(library.with_name(f"model-{manifest.sha256(library)[:_NAME_DIGITS]}.so"))


def require_replaceable(directory: Path) -> None:
    """Raise ArtifactError where something is at `directory` that is no artifact, nor what a killed `save` left."""
    where, hint = str(directory), "choose a directory that does not exist yet"
    if directory.is_symlink():
        raise ArtifactError(where, "is a link", hint="give the directory that it leads to, or remove the link")
    if not directory.exists():
        return
    path = directory / manifest.NAME
    if not directory.is_dir():
        raise ArtifactError(where, "exists and is no directory", hint=hint)
    if path.exists() or path.is_symlink():
        if not manifest.is_ours(directory):
            raise ArtifactError(where, f"exists and its {manifest.NAME} is not one of an artifact", hint=hint)
    elif not all(map(_is_left, directory.iterdir())):
        raise ArtifactError(where, "exists and is no artifact", hint=hint)


def put(stage: Path, directory: Path) -> None:
    """Make what is in `stage` the artifact at `directory`, and remove the libraries of an older one; other files stay.

    ArtifactError where something else is at `directory` meanwhile. OSError where a file cannot be moved.
    """
    for path in (*stage.iterdir(), stage):
        # It is code, and loaded only where nobody else may write, whatever the umask says.
        path.chmod(path.stat().st_mode & 0o7755)
        publish.sync(path)
    if not directory.is_dir():
        try:
            stage.rename(directory)
        except OSError:
            # Another writer may have been here first.
            if not directory.is_dir():
                raise
        else:
            publish.sync(directory.parent)
            return
    lock = directory / _LOCK
    with open_locked(lock):
        try:
            require_replaceable(directory)
            _replace(stage, directory)
        finally:
            lock.unlink(missing_ok=True)


def _replace(stage: Path, directory: Path) -> None:
    old = {path.name for path in directory.iterdir() if _is_library(path)} | manifest.libraries(directory)
    new = {path.name for path in stage.iterdir()} - {manifest.NAME}
    # A manifest lists only what is on the disk before it is.
    for names in (new, {manifest.NAME}):
        for name in names:
            (stage / name).replace(directory / name)
        publish.sync(directory)
    for name in old - new:
        (directory / name).unlink(missing_ok=True)


def _is_left(path: Path) -> bool:
    return path.name == _LOCK or is_staging(path) or _is_library(path)


def _is_library(path: Path) -> bool:
    """Whether `path` is a library that `save` wrote: named after its content."""
    named = _NAMED.fullmatch(path.name)
    return named is not None and path.is_file() and manifest.sha256(path).startswith(named[1])
