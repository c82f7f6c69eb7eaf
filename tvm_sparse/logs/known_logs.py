"""The logs that names mean, and those that are read where none is named: this user's, and those that tvm-sparse ships.

The user's are the ``*.jsonl`` files in ``logs`` in the cache folder (``TVM_SPARSE_HOME``, else
``~/.cache/tvm-sparse``), one for each kind and architecture; `optimize` writes there.
`TVM_SPARSE_LOGS` names more to read, separated by commas. A name is that of a file, or the path or URL of a folder that
somebody has published.
"""

import os
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from tvm.target import Target

from tvm_sparse.files.user_folders import cache_folder
from tvm_sparse.logs.fetching import is_folder
from tvm_sparse.logs.published import Published
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.target.fingerprint import fingerprint_of

# How the folders of shipped logs begin whose machines are GPUs.
GPU_FOLDERS = "nvidia-"
# The log of `tune` where none is named, in the working directory; read before the others.
DEFAULT_LOG = Path("tuning.jsonl")
# Environment variable: logs that are read wherever none is named, separated by commas.
LOGS = "TVM_SPARSE_LOGS"


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


def open_log(target: Target, *names: Path | str) -> TuningLog:
    """The files that are named, of which the first is written, and the published folders; `known_log` without a file.

    LogError where a file cannot be read, UsageError where no installed package fetches from a URL.
    """
    files, folders = _files_and_folders(names)
    return TuningLog(*dict.fromkeys(files), published=folders) if files else known_log(target, *names)


def known_log(target: Target, *names: Path | str) -> TuningLog:
    """What is named, or the user's log for `target`, over all other logs of the user and those that are shipped.

    LogError and UsageError as `open_log`.
    """
    also = [name.strip() for name in os.environ.get(LOGS, "").split(",") if name.strip()]
    files, folders = _files_and_folders(names)
    more, more_folders = _files_and_folders(name for name in also if name not in map(str, names))
    own = user_log(target)
    files = files or [own]
    others = [DEFAULT_LOG, own, *sorted(logs_folder().glob("*.jsonl")), *_shipped(target.kind.name)]
    unnamed = [*more, *(path for path in others if path.is_file())]
    unnamed = [path for path in dict.fromkeys(unnamed) if path not in files]
    return TuningLog(*files, unnamed=unnamed, published=[*folders, *more_folders])


def _files_and_folders(names: Iterable[Path | str]) -> tuple[list[Path], list[Published]]:
    names = list(names)
    folders = [str(name) for name in names if is_folder(name)]
    return [Path(name) for name in names if str(name) not in folders], list(map(Published, dict.fromkeys(folders)))


def _shipped(kind: str) -> list[Path]:
    """The shipped logs of machines of a kind: reading those of GPUs too would take a CPU's user most of a second."""
    paths = shipped_folder().rglob("*.jsonl*")
    return sorted(path for path in paths if path.parent.name.startswith(GPU_FOLDERS) == (kind == "cuda"))


def is_shipped(path: Path) -> bool:
    """Whether a log comes with the package."""
    return path.is_relative_to(shipped_folder())


def origin(path: Path) -> str:
    """What to call a log in a sentence."""
    try:
        return f"shipped log {path.relative_to(shipped_folder()).as_posix().removesuffix('.xz').removesuffix('.jsonl')}"
    except ValueError:
        return f"your log {path.stem}" if path.parent == logs_folder() else f"log {path}"
