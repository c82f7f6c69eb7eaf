"""An artifact as files for programs without Python: its plan, its kernels, and the C library that runs them."""

import shutil
from pathlib import Path

from tvm_sparse.errors import ArtifactError
from tvm_sparse.exporter import SOURCES
from tvm_sparse.exporter.models import Exportable
from tvm_sparse.files import publish
from tvm_sparse.files.staging import Staging, sweep


def export(artifact: str | Path, directory: str | Path) -> Path:
    """Write what a C or C++ program needs to run `artifact`; returns `directory`.

    That is ``model.plan`` and ``model.so``, for an artifact of several batches or sizes ``model-batch8.plan`` and
    ``model-batch8.so``, or ``model-1x3x320x640.plan`` and so on, for each; the C library in source, ``tvm_sparse_run``,
    which needs libc and POSIX threads, and for a GPU NVIDIA's driver, and cuDNN where a layer uses it; a program that
    uses it, ``main.c``, with its ``CMakeLists.txt``; and licences.

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
        There is no artifact, it is damaged or of another version, calls what is no code of its own, or `directory`
        cannot be written.
    """
    directory, exportable = Path(directory), Exportable(Path(artifact))
    try:
        if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
            problem = "exists and is no empty directory"
            raise ArtifactError(str(directory), problem, hint="choose a directory that does not exist yet")
        directory.parent.mkdir(parents=True, exist_ok=True)
        sweep(directory.parent)
        with Staging(directory.parent) as stage:
            folder = Path(shutil.copytree(SOURCES, stage / "folder"))
            exportable.write(folder, "model")
            for path in (*folder.rglob("*"), folder):
                publish.sync(path)
            # An empty folder gives way to another.
            folder.rename(directory)
    except OSError as error:
        hint = "check the place, its rights and its free space"
        raise ArtifactError(str(directory), f"cannot be written ({error.strerror})", hint=hint) from error
    return directory
