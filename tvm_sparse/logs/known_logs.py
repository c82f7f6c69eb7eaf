"""The logs that are read where none is named: this user's, and those that tvm-sparse ships.

The user's are the ``*.jsonl`` files in ``logs`` in the cache folder (``TVM_SPARSE_HOME``, else
``~/.cache/tvm-sparse``), one for each kind and architecture; `optimize` writes there.
"""

import re
from importlib import resources
from pathlib import Path

from tvm.target import Target

from tvm_sparse.files.user_folders import cache_folder
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.target.fingerprint import fingerprint_of

# How the folders of shipped logs begin whose machines are GPUs.
GPU_FOLDERS = "nvidia-"
# The log of `tune` where none is named, in the working directory; read before the others.
DEFAULT_LOG = Path("tuning.jsonl")


def logs_folder() -> Path:
    """Where the user's logs are; it need not exist."""
    return cache_folder() / "logs"


def user_log(target: Target) -> Path:
    """The user's log for machines like `target`; it need not exist."""
    fingerprint = fingerprint_of(target)
    return logs_folder() / f"{fingerprint['kind']}-{re.sub(r'[^A-Za-z0-9_.-]', '_', fingerprint['arch'])}.jsonl"


def shipped_folder() -> Path:
    """The logs that are part of the package."""
    return Path(str(resources.files("tvm_sparse.tuning_logs")))


def known_log(target: Target, first: Path | None = None, *more: Path) -> TuningLog:
    """`first`, or the user's log for `target`, over `more`, all other logs of the user and those that are shipped.

    LogError where a file cannot be read.
    """
    own = user_log(target)
    written = own if first is None else first
    others = [DEFAULT_LOG, own, *sorted(logs_folder().glob("*.jsonl")), *_shipped(target.kind.name)]
    found = dict.fromkeys(path for path in others if path not in (written, *more) and path.is_file())
    return TuningLog(written, *more, unnamed=list(found))


def _shipped(kind: str) -> list[Path]:
    """The shipped logs of machines of a kind: reading those of GPUs too would take a CPU's user most of a second."""
    paths = shipped_folder().rglob("*.jsonl*")
    return sorted(path for path in paths if path.parent.name.startswith(GPU_FOLDERS) == (kind == "cuda"))


def origin(path: Path) -> str:
    """What to call a log in a sentence."""
    try:
        return f"shipped log {path.relative_to(shipped_folder()).as_posix().removesuffix('.xz').removesuffix('.jsonl')}"
    except ValueError:
        return f"your log {path.stem}" if path.parent == logs_folder() else f"log {path}"
