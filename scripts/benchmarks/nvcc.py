"""Compiling the benchmarks' own CUDA sources, which have functions for the host to call."""

import subprocess
from pathlib import Path

from tvm_sparse.errors import BuildError


def shared_library(what: str, source: Path, folder: Path, arch: str, *options: str) -> Path:
    """Compile `source` for `arch`, such as ``sm_90``, into a shared library in `folder`.

    Raises
    ------
    BuildError
        There is no nvcc, or it fails; the sentence begins with `what` and quotes it.
    """
    library = folder / f"{source.stem}_{arch}.so"
    flags = ["-O3", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC", *options]
    try:
        done = subprocess.run(
            ["nvcc", *flags, "-o", str(library), str(source)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BuildError(what, f"nvcc does not start ({error})", hint="put nvcc on PATH") from None
    if done.returncode:
        raise BuildError(what, f"nvcc rejects them: {done.stderr.strip()[-500:]}")
    return library
