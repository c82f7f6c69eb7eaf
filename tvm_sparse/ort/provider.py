"""The library of the execution provider: built with this machine's C compiler, kept in the user's cache."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

from tvm_sparse.errors import BuildError
from tvm_sparse.exporter import SOURCES
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.version import __version__

FILE = "libtvm_sparse_ort.so"
_FOLDERS = (Path(__file__).parent, SOURCES / "tvm_sparse_run")
_COMPILERS = ("gcc", "clang", "cc")
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
# A program that holds the C library too is not to call this one's functions, nor this one that one's.
_HIDDEN = '-DTVM_SPARSE_API=__attribute__((visibility("hidden")))'


def library() -> bytes:
    """The content of the library.

    Raises
    ------
    BuildError
        There is no C compiler, or it fails.
    """
    # Loads TVM, which a provider that was built before does without.
    from tvm_sparse.codegen.kernel_cache import KernelCache, content_key

    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise BuildError(FILE, "cannot be built without a C compiler", hint="install gcc or clang")
    files = [path for folder in _FOLDERS for path in sorted(folder.glob("*.[ch]"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    key = content_key({"provider": digest, "compiler": compiler, "machine": platform.machine()})
    cache = KernelCache.of_user()
    content = cache.read(key) if cache else None
    if content is None:
        content = _built(compiler, [path for path in files if path.suffix == ".c"])
        if cache:
            cache.write(key, content)
    return content


def _built(compiler: str, sources: list[Path]) -> bytes:
    includes = [f"-I{folder}" for folder in _FOLDERS]
    with TemporaryFolder() as folder:
        output = folder / FILE
        command = [*shlex.split(compiler), *_FLAGS, _HIDDEN, *includes, f'-DTVM_SPARSE_VERSION="{__version__}"']
        words = [*command, *map(str, sources), "-o", str(output), "-ldl", "-lpthread"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BuildError(
                FILE, f"cannot be built ({compiler}: {error.strerror})", hint="install gcc or clang"
            ) from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"{compiler} fails"]
            raise BuildError(FILE, f"cannot be built ({lines[0]})", hint="set CC to a C11 compiler for this machine")
        return output.read_bytes()
