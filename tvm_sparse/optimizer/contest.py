"""Which layer is tuned next: the one from which the next trials promise the most time of the whole model.

Each task's search is a generator of trials that is suspended while others go on, so that time can be given out a few
trials at a time. A task is measured once before any is measured twice, the largest first. Then what counts is what it
costs the model now, how often its last trials gained something, and how long its trials take.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm_sparse.autotune.layer import tune_layer
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.session import Progress, Task, begin
from tvm_sparse.errors import BuildError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.worker_pool import WorkerPool
from tvm_sparse.schedules import pooled_cuda
from tvm_sparse.schedules.lookup import is_exact

# Trials of a task in a row.
SLICE = 8
# The first ones: dense kernels, then decisions that won elsewhere and the spaces' own.
FIRST_SLICE = 5
# Share of a layer's time that the next slice is expected to gain as long as slices gain something, and what is left of
# that after each that did not.
GAIN, DECAY = 0.1, 0.4
# A slice that gains less than this share of a layer's time has gained nothing.
NOTHING = 0.01
# Slices in a row without a gain after which a layer is at its end.
PATIENCE = 4


@dataclass
class Entry:
    """A task in the contest, and what is known of it. Times are microseconds of one of its layers.

    `batch_s` is how long the longest batch of its trials took, seconds: its search proposes and builds several at once.
    With `pools` its kernels compute the max pool behind the layers too, which have another entry without.
    """

    task: Task
    pools: bool = False
    dense_us: float = math.inf
    sparse_us: float = math.inf
    slices_without_gain: int = 0
    trials: int = 0
    spent_s: float = 0.0
    batch_s: float = 0.0
    is_at_end: bool = False
    search: Iterator[TuningRecord] | None = field(default=None, repr=False)

    @property
    def layers(self) -> int:
        """How many layers of the model it stands for."""
        return len(self.task.names)

    @property
    def time_us(self) -> float:
        """Of the best kernel so far; infinite before one was measured."""
        return min(self.dense_us, self.sparse_us)

    def learn(self, record: TuningRecord) -> None:
        """Count a verified trial of this machine."""
        if record.status != "ok" or not is_exact(record.schedule):
            return
        if record.is_dense:
            self.dense_us = min(self.dense_us, record.time_us)
        elif record.is_pooled if self.pools else not record.family.computes_more:
            self.sparse_us = min(self.sparse_us, record.time_us)

    def promise(self) -> float:
        """Microseconds of the model that a second of its trials is expected to gain; by size before the first."""
        if math.isinf(self.time_us):
            return math.inf
        cost_s = self.spent_s / self.trials * SLICE if self.trials else SLICE
        return self.time_us * self.layers * GAIN * DECAY**self.slices_without_gain / cost_s

    def size(self) -> float:
        """Work of its layers, for the order of tasks that were not measured yet."""
        return float(self.task.spec.sparse_flops(self.task.pattern.nnz) * self.layers)


class Contest:
    """The tasks of a model while they are tuned into `log`; a context manager that ends their searches.

    Those of `pooled` are tuned once more, with the max pool behind their layers. Once `stop` is set, who waits for a
    trial gets KeyboardInterrupt.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        target: Any,
        log: TuningLog,
        options: TuneOptions,
        progress: Progress,
        pooled: Sequence[Task] = (),
        stop: threading.Event | None = None,
    ):
        self.entries = [Entry(task) for task in tasks] + [Entry(task, pools=True) for task in pooled]
        self._target, self._log, self._options, self._progress = target, log, options, progress
        self._pool = WorkerPool(stop)

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *_: object) -> None:
        for entry in self.entries:
            self._close(entry)
        self._pool.__exit__()

    @property
    def compared(self) -> list[Entry]:
        """Those whose dense kernel was measured, so that sums of both sides are of the same layers; pools not among."""
        return [each for each in self.entries if not each.pools and not math.isinf(each.dense_us)]

    @property
    def model_us(self) -> float:
        """Time of the layers of `compared` with the best kernels so far."""
        return sum(each.time_us * each.layers for each in self.compared)

    @property
    def dense_us(self) -> float:
        """The same with dense kernels."""
        return sum(each.dense_us * each.layers for each in self.compared)

    def run(self, end_s: float, look: Callable[[Entry], None]) -> None:
        """Tune until the clock (`time.monotonic`) shows `end_s` or nothing more is expected; `look` after each trial.

        No batch of trials begins that would end after `end_s`, if it takes as long as the longest one of its layer.
        """
        while (now_s := time.monotonic()) < end_s:
            open_ = [each for each in self.entries if not each.is_at_end and now_s + each.batch_s <= end_s]
            if not open_:
                return
            entry = max(open_, key=lambda each: (each.promise(), each.size()))
            try:
                self._slice(entry, end_s, look)
            except BuildError as error:
                # A layer without any dense kernel must not cost the others theirs.
                self._progress.note(str(error))
                entry.is_at_end = True
                self._close(entry)

    def _slice(self, entry: Entry, end_s: float, look: Callable[[Entry], None]) -> None:
        if entry.search is None:
            entry.search = self._search(entry)
        before_us, is_first = entry.time_us, math.isinf(entry.time_us)
        trials, wanted, batch_start_s = 0, FIRST_SLICE if is_first else SLICE, 0.0
        # Never in the middle of a batch, whose workers the next search needs.
        while trials < wanted or self._pool.lent:
            trials += 1
            start_s = time.monotonic()
            if not self._pool.lent:
                batch_start_s = start_s
            if start_s >= end_s or batch_start_s + entry.batch_s > end_s:
                return
            record = next(entry.search, None)
            entry.spent_s += time.monotonic() - start_s
            entry.batch_s = max(entry.batch_s, time.monotonic() - batch_start_s)
            if record is None:
                # All trials that were asked for are made; a new search goes on where that one ended.
                entry.is_at_end = trials == 1
                self._close(entry)
                return
            entry.trials += 1
            self._log.append(record)
            entry.learn(record)
            self._progress.trial(record)
            look(entry)
        gained = is_first or entry.time_us < before_us * (1 - NOTHING)
        entry.slices_without_gain = 0 if gained else entry.slices_without_gain + 1
        if entry.slices_without_gain >= PATIENCE or math.isinf(entry.time_us):
            entry.is_at_end = True
            self._close(entry)

    def _search(self, entry: Entry) -> Iterator[TuningRecord]:
        task, target = entry.task, self._target
        known, starts = begin(task, target, self._log, self._progress)
        for record in known:
            entry.learn(record)
        # What the log knows does not count towards what is tried now.
        options = replace(self._options, trials=self._options.trials + len(known))
        if task.pattern.structure == "dense":
            # Hardly ever does a kernel that skips zeros win here.
            options = replace(options, dense_trials=options.trials // 2)
        if entry.pools:
            options = replace(options, schedules=(pooled_cuda.NAME,))
        return tune_layer(task.spec, task.weight, target, options, known, lambda: None, starts, self._pool)

    def _close(self, entry: Entry) -> None:
        if entry.search is not None:
            # A generator; its workers go back to the pool.
            entry.search.close()  # type: ignore[attr-defined]
            entry.search = None
