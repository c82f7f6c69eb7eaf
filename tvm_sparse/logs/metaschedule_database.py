"""Import and export of MetaSchedule's JSON database: a folder with ``database_workload.json`` and
``database_tuning_record.json``.

TVM's own reader loses a database to one bad line, and crashes on some; here each line is read by a worker process, and
a bad one costs itself. What a record of a database cannot hold is lost on the way out: the cause of a failure, the
error against the bound, the times of the dense baseline, seed and time stamp. So what comes back counts as not verified
(``error`` is null), and compiling verifies it before it is used.
"""

from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.files import publish
from tvm_sparse.logs import metaschedule_worker
from tvm_sparse.logs.log_file import Rejected, content
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.worker import Worker
from tvm_sparse.untrusted.json_text import loads

RECORD_TIMEOUT_S = 60.0
COMMAND = (*Worker.command, "tvm_sparse.logs.metaschedule_worker")
FAILED = "failed in MetaSchedule, whose database does not say why"


def export_database(records: Iterable[TuningRecord], folder: Path) -> list[tuple[TuningRecord, str]]:
    """Write `records` to a new database in `folder`, which appears whole or not at all.

    Returns
    -------
    list
        The records that it cannot hold, each with the reason.

    Raises
    ------
    LogError
        The folder exists or cannot be made.
    """
    if folder.exists():
        raise LogError(str(folder), "exists already", hint="choose another name or delete it first")
    left_out = []
    worker = Worker({"TVM_NUM_THREADS": "1"}, command=COMMAND)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with publish.new_folder(folder) as staging:
            for record in records:
                request = {"action": "write", "line": record.to_line(), "folder": str(staging)}
                reason = _failure(worker.ask(request, RECORD_TIMEOUT_S))
                if reason:
                    left_out.append((record, reason))
    except OSError as error:
        raise LogError(str(folder), f"cannot be made ({error.strerror})", hint="check path and rights") from error
    finally:
        worker.stop()
    return left_out


def import_database(folder: Path) -> tuple[list[TuningRecord], list[Rejected]]:
    """The records of a database, and the lines of it that are none.

    Raises
    ------
    LogError
        `folder` holds no database.
    """
    paths = folder / metaschedule_worker.WORKLOADS, folder / metaschedule_worker.RECORDS
    for path in paths:
        if not path.is_file():
            raise LogError(str(path), "no such file", allowed="a folder with the two files of a MetaSchedule database")
    workloads, lines = (content(path).decode(errors="backslashreplace").splitlines() for path in paths)
    made = datetime.fromtimestamp(int(paths[1].stat().st_mtime), timezone.utc).isoformat()
    records, rejected = [], []
    worker = Worker({"TVM_NUM_THREADS": "1"}, command=COMMAND)
    try:
        for number, line in enumerate(lines, 1):
            try:
                records.append(_record(_read(line, workloads, worker), made))
            except LogError as error:
                rejected.append(Rejected(number, str(error), line, paths[1]))
    finally:
        worker.stop()
    return records, rejected


def _read(line: str, workloads: list[str], worker: Worker) -> dict[str, Any]:
    """A line of the database as fields of a record; LogError where it is none."""
    try:
        found = loads(line)
    except ValueError as error:
        raise LogError("database record", f"the line is not JSON ({error})") from error
    if not (isinstance(found, list) and len(found) == 2 and type(found[0]) is int and isinstance(found[1], list)):
        raise LogError("database record", "the line is not [workload, [trace, times, target, arguments]]")
    if not 0 <= found[0] < len(workloads):
        raise LogError("database record", "no such workload", found[0], f"0 to {len(workloads) - 1}")
    request = {"action": "read", "record": line, "workload": workloads[found[0]]}
    answer = worker.ask(request, RECORD_TIMEOUT_S)
    if reason := _failure(answer):
        raise LogError("database record", f"cannot be used: {reason}")
    return answer


def _record(found: dict[str, Any], timestamp: str) -> TuningRecord:
    times_us = tuple(found.pop("times_us"))
    spec, pattern = ConvSpec.from_json(found.pop("spec")), SparsityPattern(**found.pop("pattern"))
    return TuningRecord(
        spec=spec,
        pattern=pattern,
        status="ok" if times_us else "run_failed",
        cause="" if times_us else FAILED,
        times_us=times_us,
        seed=0,
        timestamp=timestamp,
        **found,
    )


def _failure(answer: dict[str, Any]) -> str:
    """Why a worker gave no answer; empty if it did."""
    if "timeout" in answer:
        return f"TVM took longer than {answer['timeout']:g} s"
    return str(answer.get("failure", ""))
