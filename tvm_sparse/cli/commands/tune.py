"""``tune``: search the kernels of a model into a log; with ``--dry-run`` only say what that would mean."""

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from tvm.target import Target

from tvm_sparse.autotune import session
from tvm_sparse.autotune.fleet.local_devices import kind_of
from tvm_sparse.autotune.fleet.open_fleet import open_fleet
from tvm_sparse.autotune.options import PATIENCE, TuneOptions
from tvm_sparse.autotune.progress.live_progress import LiveProgress
from tvm_sparse.cli import common
from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.pipeline import Options
from tvm_sparse.compiler.plan.expected_gain import verdict_of
from tvm_sparse.display import tables
from tvm_sparse.display.words import duration
from tvm_sparse.errors import UsageError
from tvm_sparse.logs.known_logs import open_log
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.schedules.lookup import family_of, schedule_names, spaces_of
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

# What a trial took on two cores, for layers of a few thousand to a hundred thousand non-zeros.
SECONDS_PER_TRIAL = 2.0


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: what each task has now, or with ``--dry-run`` what it would try."""
    request = common.request_of(arguments)
    devices = arguments.devices
    if request.device_index and devices is None and arguments.ray is None:
        devices = [arguments.target]
    given = kind_of(devices) if devices is not None and arguments.target is None else arguments.target
    target = resolve_target(given, arguments.threads)
    unknown = sorted(set(arguments.schedules or ()) - set(schedule_names(target, every=True)))
    if unknown:
        raise UsageError("--schedules", "unknown", ", ".join(unknown), ", ".join(schedule_names(target, every=True)))
    models = dict(request.models())
    layers = (session.tuned_layers(prepared.layers, arguments.schedules) for prepared in models.values())
    tasks = session.select([task for some in layers for task in session.tasks_of(some)], arguments.layers)
    if arguments.dry_run:
        return _plan(tasks, target, _log(arguments, target), arguments)
    if arguments.ray is None and target.kind.name == "cuda" and (obstacle := family_of("dense_cudnn").why_not_here()):
        console.print(Text(f"{obstacle}; kernels are compared with TVM's own dense ones, which are slower"))
    progress = LiveProgress(console, limit_s=arguments.seconds, allow_tf32=arguments.allow_tf32)
    options = _options(arguments)
    if devices is None and arguments.ray is None:
        log = _log(arguments, target)
        # Where TVM or XGBoost call Python, a KeyboardInterrupt may be lost.
        session.tune_tasks(tasks, target, log, options, progress, stop=arguments.signals.stop)
    else:
        # What the target leaves open is the devices'.
        with open_fleet(devices, arguments.ray, target if arguments.threads else given, options) as fleet:
            target, log = fleet.target, _log(arguments, fleet.target)
            session.tune_tasks(tasks, target, log, options, progress, fleet)
    rows = [task.to_json() for task in progress.tasks]
    verdicts = [
        verdict_of(
            Compilation(model, target, log, Options(arguments.allow_tf32)).plan, arguments.allow_tf32, variant.name
        ).to_json()
        for variant, model in models.items()
    ]
    return {"log": str(log.path), "seconds": arguments.seconds, "tasks": rows, "verdicts": verdicts}


def _log(arguments: argparse.Namespace, target: Target) -> TuningLog:
    """That of ``--output`` over those of ``--log``; else the first of these over the others."""
    names = [name for name in (arguments.output, *arguments.log) if name]
    return open_log(target, *names).checked()


def _options(arguments: argparse.Namespace) -> TuneOptions:
    limits: dict[str, Any] = {}
    if arguments.timeout:
        limits |= {"build_timeout_s": arguments.timeout, "run_timeout_s": arguments.timeout}
    if arguments.worker_memory:
        limits["memory_bytes"] = int(arguments.worker_memory * 2**30)
    return TuneOptions(
        trials=arguments.trials,
        seed=arguments.seed,
        seconds=arguments.seconds,
        schedules=tuple(arguments.schedules) if arguments.schedules else None,
        patience=None if arguments.full else PATIENCE,
        measure=MeasureOptions(**limits),
    )


def _plan(
    tasks: Sequence[session.Task], target: Target, log: TuningLog, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Each task with its schedules and the trials that are left, and about how long they take."""
    fingerprint = fingerprint_of(target)
    rows = []
    for task in tasks:
        found, reasons = spaces_of(task.spec, task.pattern, target, arguments.schedules)
        known = len(log.trials(task.spec, task.pattern, fingerprint))
        rows.append(
            {
                "layers": list(task.names),
                "convolution": task.spec.key,
                "density": task.pattern.density,
                "nnz": task.pattern.nnz,
                "schedules": dict(Counter(each.schedule for each in found)),
                "not_applicable": reasons,
                "known_trials": known,
                "trials": max(arguments.trials - known, 0),
            }
        )
    limit_s = math.inf if arguments.seconds is None else arguments.seconds
    return {
        "log": str(log.path),
        "dry_run": True,
        "tasks": rows,
        "trials": sum(row["trials"] for row in rows),
        "seconds": arguments.seconds,
        "seconds_estimate": sum(min(row["trials"] * SECONDS_PER_TRIAL, limit_s) for row in rows),
    }


def show(document: dict[str, Any], console: Console) -> None:
    """One row a task."""
    if document.get("dry_run"):
        _show_plan(document, console)
        return
    rows = [{**row, "failures": sum(row["failures"].values())} for row in document["tasks"]]
    columns = {"layers": "layers"} | ({"batch": "batch"} if len({row["batch"] for row in rows}) > 1 else {})
    columns |= {
        "trials": "trials",
        "new_trials": "new",
        "failures": "failed",
        "dense_time_us": "dense us",
        "time_us": "best us",
        "speedup": "speed-up",
    }
    console.print(tables.TableView(document["log"], rows, columns))
    early = [tables.cell(row["layers"]) for row in rows if row["ended_early"]]
    if early:
        console.print()
        console.print(Text(f"Ended early, as nothing more was gained: {', '.join(early)}. --full makes all trials."))
    ended = [tables.cell(row["layers"]) for row in rows if row["out_of_time"]]
    if ended:
        console.print()
        limit = f"The time, {document['seconds']:g} s a layer, and not the trials"
        console.print(Text(f"{limit} ended the search of: {', '.join(ended)}. Run again to go on."))
    console.print()
    common.show_verdicts(document["verdicts"], console)


def _show_plan(document: dict[str, Any], console: Console) -> None:
    columns = {
        "layers": "layers",
        "convolution": "convolution",
        "density": "density",
        "nnz": "non-zeros",
        "schedules": "schedules (variants)",
        "known_trials": "in the log",
        "trials": "to try",
    }
    console.print(tables.TableView("What would be tuned", document["tasks"], columns))
    console.print()
    span = duration(document["seconds_estimate"])
    limit = f", {document['seconds']:g} s a layer at most" if document["seconds"] else ""
    console.print(Text(f"{document['trials']} trials to run, about {span} at {SECONDS_PER_TRIAL:g} s each{limit}."))
