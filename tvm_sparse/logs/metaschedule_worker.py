"""One record between a tuning log and MetaSchedule's JSON database; a worker of its own, as TVM may crash on either.

A workload of the database is the dense function that a schedule space starts from, with what MetaSchedule has no place
for as its attribute `ORIGIN`: the convolution, the zeros of the weight, the schedule's name and the machine. They make
workloads of different weights and machines different, which MetaSchedule's own look-up would not keep apart.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm import IRModule
from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.serve import Action
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.metaschedule import meta_schedule
from tvm_sparse.scheduling.space import Decisions, Space
from tvm_sparse.scheduling.trace import replayed, trace_to_json
from tvm_sparse.target.resolve import target_json

# Attribute of a workload's function: JSON with the keys of `_origin`.
ORIGIN = "tvm_sparse.origin"
# Names of a database's two files in its folder.
WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
# The time, in seconds, that MetaSchedule gives a candidate that failed.
FAILED_S = 1e9


def write(request: dict[str, Any]) -> dict[str, Any]:
    """Add the record in ``line``, a line of a log, to the database in ``folder``."""
    record = TuningRecord.from_line(request["line"])
    target = Target(record.target)
    each = find_space(record.schedule, record.spec, record.pattern, target)
    trace = each.scheduled(record.chosen).trace
    func = each.func.with_attr(ORIGIN, _origin(record))
    database, ms = _database(request["folder"]), meta_schedule()
    seconds = [time_us / 1e6 for time_us in record.times_us] if record.status == "ok" else [10 * FAILED_S]
    workload = database.commit_workload(IRModule({"main": func}))
    arguments = ms.arg_info.ArgInfo.from_prim_func(func)
    database.commit_tuning_record(ms.database.TuningRecord(trace, workload, seconds, target, arguments))
    return {}


def read(request: dict[str, Any]) -> dict[str, Any]:
    """What ``record``, a line of a database whose workload is in ``workload``, says as fields of a `TuningRecord`.

    Raises
    ------
    LogError
        The workload is not one that `write` made, or not as this tvm-sparse would make it.
    """
    with TemporaryFolder() as folder:
        # A database of this record alone, read by TVM itself.
        _, *rest = json.loads(request["record"])
        Path(folder, WORKLOADS).write_text(request["workload"] + "\n")
        Path(folder, RECORDS).write_text(json.dumps([0, *rest]) + "\n")
        (found,) = meta_schedule().database.JSONDatabase(work_dir=str(folder)).get_all_tuning_records()
    functions = [func for _, func in found.workload.mod.functions_items()]
    origin = functions[0].attrs.get(ORIGIN) if len(functions) == 1 and functions[0].attrs else None
    if origin is None:
        raise LogError("workload", "no convolution that tvm-sparse exported")
    named = json.loads(str(origin))
    target = target_json(found.target)
    spec, pattern = ConvSpec.from_json(named["spec"]), SparsityPattern(**named["pattern"])
    each = find_space(named["schedule"], spec, pattern, Target(target))
    if not tvm_ffi.structural_equal(each.func.with_attr(ORIGIN, origin), functions[0]):
        raise LogError("workload", f"another tvm-sparse made it: {named['schedule']} starts from another function now")
    schedule = replayed(each.func, f"schedule {each.name}", trace_to_json(found.trace))
    chosen = _own_decisions(each, schedule)
    seconds = [float(value) for value in found.run_secs]
    times_us = [] if max(seconds) >= FAILED_S else [float(f"{value * 1e6:.15g}") for value in seconds]
    kept = {"decisions": chosen, "trace": None} if isinstance(chosen, dict) else {"decisions": {}, "trace": chosen}
    return {**named, **kept, "times_us": times_us, "target": target}


def _own_decisions(space: Space, schedule: Any) -> Decisions:
    """The decisions with which `space` makes `schedule`; LogError where it would make another."""
    try:
        chosen = space.decisions_of(schedule)
        own = space.scheduled(chosen)
    except ValueError as error:
        raise LogError("trace", f"another tvm-sparse made it: {space.name} has other decisions now") from error
    if not tvm_ffi.structural_equal(own.mod["main"], schedule.mod["main"]):
        raise LogError("trace", f"another tvm-sparse made it: {space.name} schedules otherwise now")
    return chosen


def _origin(record: TuningRecord) -> str:
    origin = {
        "spec": record.spec.to_json(),
        "pattern": record.pattern.to_json(),
        "schedule": record.schedule,
        "fingerprint": record.fingerprint,
    }
    return json.dumps(origin, sort_keys=True)


@cache
def _database(folder: str) -> Any:
    return meta_schedule().database.JSONDatabase(work_dir=folder)


def actions() -> dict[str, Action]:
    """What `worker_main` serves."""
    return {"write": write, "read": read}
