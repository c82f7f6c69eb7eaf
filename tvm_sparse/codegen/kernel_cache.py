"""What building kernels has made, on disk, under a key that says what it was made from.

A file holds its content's SHA-256 and the content, which is data to whoever reads it. It is written beside its place
and moved there whole, so readers and writers in several processes meet no half of one; a damaged file counts as none.
Where the folder takes more than its limit the files that were not used for longest go. A folder that cannot be used, or
where others could put files, fails nothing: nothing is kept, and a warning says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
import warnings
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm

from tvm_sparse.errors import UsageError
from tvm_sparse.files.ownership import exposed, make_private
from tvm_sparse.files.staging import Staging, sweep
from tvm_sparse.files.user_folders import cache_folder
from tvm_sparse.untrusted.whole_number import whole_number
from tvm_sparse.version import __version__

# Environment variable: what the folder may take, in MiB; 0: nothing is kept, and nothing read.
LIMIT = "TVM_SPARSE_CACHE_MIB"
DEFAULT_LIMIT_MIB = 4096
# Begins each file; another format has another one.
_MAGIC = b"tvm-sparse kernel cache 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_KEY = re.compile("[0-9a-f]{64}")
# Packages whose code decides what a kernel becomes.
_DECIDING = ("target", "conv", "scheduling", "schedules", "codegen")


def content_key(parts: Mapping[str, Any]) -> str:
    """The key of what is made from `parts`, JSON values, by this version of tvm-sparse and TVM: 64 hex digits.

    Also of TVM's `PassContext`, which turns passes off and sets what they do.
    """
    text = json.dumps({**parts, "versions": _versions(), "passes": _pass_context()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    """Versions of what makes kernels; of tvm-sparse the code too, which may change without its number."""
    versions = {name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
    return {"tvm-sparse": __version__, "code": code_digest(_DECIDING), **versions}


def _pass_context() -> list[Any]:
    context = tvm.transform.PassContext.current()
    passes = (sorted(map(str, each)) for each in (context.required_pass, context.disabled_pass))
    return [int(context.opt_level), *passes, str(tvm.ir.save_json(context.config))]


@lru_cache
def code_digest(packages: tuple[str, ...]) -> str:
    """SHA-256 of the source of some of tvm-sparse's packages."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    files = (
        path for package in packages for path in (root / package).rglob("*") if path.suffix in (".py", ".cu", ".cuh")
    )
    for path in sorted(files):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


class KernelCache:
    """The files in `folder`, which together take `limit_bytes` at most, about."""

    def __init__(self, folder: Path, limit_bytes: int):
        self.folder, self.limit_bytes = folder, limit_bytes
        # What was written since files were last counted; the first write counts them.
        self._uncounted = limit_bytes

    @classmethod
    def of_user(cls) -> KernelCache | None:
        """This user's; None, with a warning, where it cannot be used, and without one where its limit is 0.

        UsageError where the limit is no number.
        """
        limit = _limit_bytes()
        if not limit:
            return None
        folder = cache_folder() / "kernels"
        try:
            problem = "" if make_private(folder) else f"{folder} is not this user's alone"
            problem = problem or exposed(folder)
        except OSError as error:
            problem = f"{folder}: {error.strerror}"
        if problem:
            _warn(problem)
            return None
        return cls(folder, limit)

    def read(self, key: str) -> bytes | None:
        """The content under `key`; None where there is none."""
        path = self.folder / key
        try:
            # Not through a link, which could lead out of the folder; nor waiting for the writer of a FIFO.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags), "rb") as file:
                found = os.fstat(file.fileno())
                data = file.read() if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() else b""
                # Of what is used, so that it stays; on a disk that is read-only nothing goes.
                with contextlib.suppress(OSError):
                    os.utime(file.fileno())
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn(f"{self.folder}: {error.strerror}")
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        content = data[start:]
        if data[:start] != _MAGIC + hashlib.sha256(content).digest():
            self.remove(key)
            return None
        return content

    def write(self, key: str, content: bytes) -> None:
        """Keep `content` under `key`; where that fails, as on a full disk, a warning says so."""
        try:
            # Not synced: what a power cut takes is built again.
            with Staging(self.folder) as stage:
                new = stage / key
                with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(content).digest())
                    file.write(content)
                new.replace(self.folder / key)
            self._uncounted += len(content)
            # Counting costs more than a small write.
            if self._uncounted > self.limit_bytes // 16:
                self._trim()
        except OSError as error:
            _warn(f"{self.folder}: {error.strerror}")

    def remove(self, key: str) -> None:
        """Keep nothing under `key`, where that can be changed."""
        with contextlib.suppress(OSError):
            (self.folder / key).unlink()

    def _trim(self) -> None:
        """Remove what writers left behind, and the files used longest ago where all take more than they may."""
        self._uncounted = 0
        sweep(self.folder)
        now_s = time.time()
        files: list[tuple[float, int, str]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                # Another process may remove it meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if _KEY.fullmatch(entry.name):
                        found = entry.stat(follow_symlinks=False)
                        # A date in the future says nothing of use, and would keep its file for ever.
                        used_s = found.st_mtime if found.st_mtime <= now_s else 0.0
                        files.append((used_s, found.st_size, entry.path))
        excess = sum(size for _, size, _ in files) - self.limit_bytes
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            Path(path).unlink(missing_ok=True)
            excess -= size


def _limit_bytes() -> int:
    setting = os.environ.get(LIMIT, str(DEFAULT_LIMIT_MIB))
    mebibytes = whole_number(setting)
    if mebibytes is None:
        raise UsageError(f"environment variable {LIMIT}", "not a number of MiB", setting[:40], "0 or more")
    return mebibytes << 20


def _warn(problem: str) -> None:
    """Python shows a warning of this line once for each text."""
    warnings.warn(f"built kernels cannot be kept: {problem}; set {LIMIT}=0 to keep none", stacklevel=1)
