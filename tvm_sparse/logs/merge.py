"""New logs of records of others."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tvm_sparse.logs import log_file
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog


def write(path: Path | str, records: Iterable[TuningRecord]) -> None:
    """Write a new log of `records`, each once, sorted as text; compressed where the name ends in ``.xz``.

    LogError where the file exists (it could be some tuner's log), or cannot be written.
    """
    log_file.create(Path(path), sorted({record.to_line() for record in records}))


def merge(paths: Sequence[Path | str], output: Path | str) -> TuningLog:
    """Write the union of logs to a new file; their order and repetition change nothing.

    LogError where an input does not exist or holds records of a newer tvm-sparse, or `output` exists.

    Returns
    -------
    TuningLog
        Of the inputs; its `rejected` says which lines were left out.
    """
    # The first file of a log may be missing; no input may.
    union = TuningLog(NO_FILE, *paths)
    union.require_known_schema()
    write(output, union.records)
    return union
