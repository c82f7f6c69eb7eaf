"""Tune all convolutions of a model into a log.

Layers of one shape, structure and about one density share their trials: a schedule decision holds for a shape, and the
compiler verifies it again with each layer's own weight (tuning_logs/README.md, "When a record is used").
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm_sparse.autotune import task_lock
from tvm_sparse.autotune.fleet.fleet import Fleet
from tvm_sparse.autotune.fleet.job import Job
from tvm_sparse.autotune.fleet.open_fleet import open_fleet
from tvm_sparse.autotune.layer import tune_layer
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.progress.live_progress import progress_of
from tvm_sparse.autotune.progress.progress import Progress, Task
from tvm_sparse.autotune.search.proxy_layer import Sample
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.logs.matching import distance
from tvm_sparse.logs.record import FINGERPRINT_KEYS, TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.worker_pool import WorkerPool
from tvm_sparse.request.options import ModelOptions, takes
from tvm_sparse.request.request import Request
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from tvm.target import Target
    from typing_extensions import Unpack

# Layers whose densities differ by no more than this factor share their trials.
DENSITY_RATIO = 1.25


def tuned_layers(layers: Sequence[ConvLayer], schedules: Sequence[str] | None) -> list[ConvLayer]:
    """Those that `schedules` may serve (None: all): schedules that pool serve what has a pool behind it."""
    if not schedules or not all(family_of(each).computes_pool for each in schedules):
        return list(layers)
    return [layer for layer in layers if layer.has_pool]


def tasks_of(layers: Sequence[ConvLayer]) -> list[Task]:
    """Group a model's layers into tasks, in the order of the model; there is nothing to tune where all is zero."""
    tasks: list[Task] = []
    for layer in layers:
        pattern = layer.pattern
        if not pattern.nnz:
            continue
        for index, task in enumerate(tasks):
            if task.spec == layer.spec and are_alike(task.pattern, pattern):
                tasks[index] = replace(task, names=(*task.names, layer.name))
                break
        else:
            tasks.append(Task((layer.name,), layer.spec, layer.weight, pattern))
    return tasks


def are_alike(one: SparsityPattern, other: SparsityPattern) -> bool:
    """Whether weights with these zeros share their trials: of one structure, and about as dense."""
    return one.structure == other.structure and distance(one, other) <= math.log(DENSITY_RATIO)


def select(tasks: Sequence[Task], wanted: Sequence[str] | None) -> list[Task]:
    """The tasks that hold any of the layers `wanted`; all for None.

    Raises
    ------
    UsageError
        A wanted layer is not in the model.
    """
    if wanted is None:
        return list(tasks)
    # A layer has a task for each batch.
    names = list(dict.fromkeys(name for task in tasks for name in task.names))
    missing = [name for name in wanted if name not in names]
    if missing:
        raise UsageError("layers", "not in the model", ", ".join(missing), ", ".join(names))
    return [task for task in tasks if set(task.names) & set(wanted)]


@takes(ModelOptions)
def tune(
    source: Any,
    example_inputs: Any = None,
    *,
    trials: int = 64,
    options: TuneOptions | None = None,
    layers: Sequence[str] | None = None,
    devices: Sequence[str] | None = None,
    ray: str | None = None,
    progress: Progress | bool | None = None,
    **of_model: Unpack[ModelOptions],
) -> TuningLog:
    """Tune the convolutions of a model and return the log; a rerun with the same log continues the last one.

    Several processes may tune into one log, also on several devices: they share the convolutions between them.

    Parameters
    ----------
    source, example_inputs
        The model, as `tvm_sparse.compile` takes it.
    trials
        Candidates a task, those already in the log included.
    options
        Everything else about the search; its `trials` is overridden.
    layers
        Names of the layers to tune; None for all.
    progress
        What is told how far it is: an object of yours; True, a line on standard error; False, nobody; None, that line
        where standard error is a terminal or Jupyter runs.
    devices
        Of this machine, which tune different layers at the same time: ``["cuda:0", "cuda:1"]``, as CUDA numbers them.
    ray
        The address of a Ray cluster, whose devices do the same: ``"auto"``, ``"host:port"``, ``"ray://host:port"``, or
        ``"local"`` for one on this machine. See docs/scale-out.md.
    **of_model
        Of `ModelOptions`. Each trial is appended to `log` as soon as it ends. Batches are tuned one after the other; a
        later one first tries what was fastest at the others.

    Raises
    ------
    ModelError, UsageError, LogError, BuildError
        The model, an argument or the log cannot be used, or no dense kernel builds.
    """
    request, options = Request.of(source, example_inputs, **of_model), replace(options or TuneOptions(), trials=trials)
    if request.device_index and devices is None and ray is None:
        # A process of its own, which sees no other GPU.
        devices = [f"cuda:{request.device_index}"]
    # Before the model is read, which may take long.
    log = request.opened if devices is None and ray is None else None
    tasks = [task for _, model in request.models() for task in tasks_of(tuned_layers(model.layers, options.schedules))]
    tasks, progress = select(tasks, layers), progress_of(progress, options.seconds)
    if log is not None:
        _require_here(request.resolved)
        tune_tasks(tasks, request.resolved, log, options, progress)
        return log
    # What the target leaves open is the devices'.
    with open_fleet(devices, ray, request.target if request.threads is None else request.resolved, options) as fleet:
        log = request.opened_for(fleet.target)
        tune_tasks(tasks, fleet.target, log, options, progress, fleet)
    return log


def _require_here(target: Target) -> None:
    """Raise UsageError for a target that does not run here."""
    if obstacle := why_not_here(target):
        hint = "tune where it runs; compile takes predicted kernels for it"
        raise UsageError("target", f"nothing can be timed for it here: {obstacle}", hint=hint)


def tune_tasks(
    tasks: Sequence[Task],
    target: Any,
    log: TuningLog,
    options: TuneOptions,
    progress: Progress,
    fleet: Fleet | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Tune `tasks` into `log`, those that no other process tunes first; on the devices of `fleet`, if there is one.

    Without one, KeyboardInterrupt ends it at the next candidate once `stop` is set.
    """
    machine = json.dumps([fingerprint_of(target)[key] for key in FINGERPRINT_KEYS])

    def claim(task: Task) -> str:
        # Tasks of one convolution share their dense trials, so one process at a time has them all.
        return task.spec.key + machine

    def waits(task: Task) -> None:
        progress.note(f"{task.names[0]}: another process is tuning it, waiting")

    progress.start(tasks, options.trials)
    try:
        if fleet is not None and tasks:
            for sentence in fleet.notes:
                progress.note(sentence)
            desk = _Desk(target, log, fleet.options(options), progress, waits)
            with task_lock.Claims(log.path, tasks, claim, _kin) as claims:
                fleet.tune(claims, desk)
            return
        with WorkerPool(stop) as worker_pool:
            for task in task_lock.in_turn(log.path, tasks, claim, waits):
                tune_task(task, target, log, options, progress, worker_pool)
    finally:
        progress.end()


def _kin(task: Task) -> str:
    """The same of a layer's batches: they come one after the other, as each starts from what was fastest before it."""
    return replace(task.spec, n=1).key


def tune_task(
    task: Task,
    target: Any,
    log: TuningLog,
    options: TuneOptions,
    progress: Progress,
    worker_pool: WorkerPool | None = None,
) -> None:
    """Tune one task into `log` with workers of `worker_pool`.

    Bad lines of the log are moved away; what others have added to it is not measured again.
    """
    known, starts = begin(task, target, log, progress)
    ends = progress.out_of_time, starts, worker_pool, progress.ended_early
    for record in tune_layer(task.spec, task.weight, target, options, known, *ends):
        log.append(record)
        progress.trial(record)


def begin(task: Task, target: Any, log: TuningLog, progress: Progress) -> tuple[list[TuningRecord], list[TuningRecord]]:
    """What a search of a task begins with: trials that the log holds, and records of others to try first."""
    log.refresh()
    if any(line.path == log.path and not line.newer for line in log.rejected):
        progress.note(f"{log.path}: {log.quarantine()} bad line(s) moved to {log.path}.rejected")
    fingerprint = fingerprint_of(target)
    known = log.trials(task.spec, task.pattern, fingerprint)
    sample = Sample.of(task.spec, task.weight, target)
    if sample is not None:
        known += log.trials(sample.spec, sample.pattern, fingerprint)
    progress.task(task, known)
    for sentence in log.ignored_trials(task.spec, task.pattern, fingerprint):
        progress.note(f"    {sentence}")
    # Not its own trials: a run that is continued would start with what it found, and go another way.
    other = log.lookup(task.spec, task.pattern, fingerprint, own=False)
    starts = [other.record] if other else []
    near = log.near(task.spec, task.pattern, fingerprint)
    starts += [near.record] if near else []
    starts += log.candidates(task.spec, task.pattern, fingerprint)
    starts += log.of_other_batches(task.spec, task.pattern, fingerprint)
    return known, starts


@dataclass(frozen=True)
class _Desk:
    """Gives the devices of a fleet their tasks, and puts the records that come back into the log."""

    target: Any
    log: TuningLog
    options: TuneOptions
    progress: Progress
    waits: Callable[[Task], None]

    def begin(self, task: Task, device: str) -> Job:
        known, starts = begin(task, self.target, self.log, self.progress.on(device))
        return Job(task.spec, task.weight, self.options, tuple(known), tuple(starts))

    def trial(self, record: TuningRecord, device: str) -> None:
        self.log.append(record)
        self.progress.on(device).trial(record)
