"""What is known of a layer while it is tuned: trials, best times, causes of failures."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display.words import cell
from tvm_sparse.errors import typed
from tvm_sparse.logs.ranking import Comparison, against_baseline, fastest
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.schedules.lookup import family_of, is_exact, title_of
from tvm_sparse.scheduling.family import schedule_of

# Characters of a cause; of what differs further on, one is shown.
CAUSE_WIDTH = 150
# Statuses of failed trials, as words.
_FAILURES = {
    "build_failed": "not built",
    "run_failed": "crashed",
    "timeout": "timed out",
    "wrong": "wrong result",
    "rejected": "rejected",
}


class Causes:
    """Why trials failed: records counted by schedule, status and the beginning of their cause."""

    def __init__(self, records: Iterable[TuningRecord] = ()):
        self._counts: Counter[tuple[str, str, str]] = Counter()
        for record in records:
            self.add(record)

    def add(self, record: TuningRecord) -> None:
        """Count `record` if it failed."""
        if record.status != "ok":
            cause = " ".join(record.cause.split())[:CAUSE_WIDTH]
            self._counts[schedule_of(record.schedule), record.status, cause] += 1

    def to_json(self) -> list[dict[str, Any]]:
        """The most frequent first."""
        rows = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return [
            {"schedule": schedule, "status": status, "cause": cause, "count": count}
            for (schedule, status, cause), count in rows
        ]

    def lines(self, most: int = 3) -> list[str]:
        """Sentences of the `most` frequent."""
        rows = self.to_json()
        lines = [f"{row['count']} {_FAILURES[row['status']]}: {row['schedule']}: {row['cause']}" for row in rows[:most]]
        return lines + [f"and {len(rows) - most} more causes, see: {typed('logs stats LOG')}"] * (len(rows) > most)


class TaskProgress:
    """What is known of one task while it is tuned: trials done, best times in microseconds, failures by status.

    Trials of convolutions other than `spec`, where it is given, are of a sample: they count, but their times do not.
    """

    def __init__(
        self,
        names: Sequence[str],
        known: Iterable[TuningRecord],
        spec: ConvSpec | None = None,
        allow_tf32: bool = False,
    ):
        self.names, self._spec, self._allow_tf32 = tuple(names), spec, allow_tf32
        self.batch = spec.n if spec else None
        self.done = 0
        self.new = 0
        self.is_out_of_time = False
        # Why it ended before its trials were made, though there was time.
        self.early_end: str | None = None
        self.failures: Counter[str] = Counter()
        self.causes = Causes()
        self.new_causes = Causes()
        self._best: TuningRecord | None = None
        self._best_dense_us: float | None = None
        for record in known:
            self._add(record)

    def is_same(self, other: "TaskProgress") -> bool:
        """Whether `other` is of the same layers and batch."""
        return (self.names, self.batch) == (other.names, other.batch)

    def add(self, record: TuningRecord) -> None:
        """A new trial has ended; a library's count towards no budget."""
        self.new += not record.family.is_library
        self._add(record)
        self.new_causes.add(record)

    def _add(self, record: TuningRecord) -> None:
        self.done += not record.family.is_library
        self.causes.add(record)
        if record.status != "ok":
            self.failures[record.status] += 1
        elif self._spec not in (None, record.spec) or (record.is_dense and not self._is_allowed(record.schedule)):
            return
        elif record.family.computes_before:
            # Of three layers: no time of this one.
            return
        elif record.is_dense:
            self._best_dense_us = min(record.time_us, self._best_dense_us or record.time_us)
        else:
            self._best = fastest(filter(None, (self._best, record)))

    @property
    def time_us(self) -> float | None:
        """Of the fastest sparse kernel."""
        return self._best.time_us if self._best else None

    @property
    def dense_time_us(self) -> float | None:
        """Of the dense kernel in the run of the fastest sparse kernel; before there is one, of the fastest dense."""
        return self._against.baseline.median if self._against is not None else self._best_dense_us

    @property
    def _against(self) -> Comparison | None:
        return against_baseline(self._best, None, self._is_allowed) if self._best is not None else None

    def _is_allowed(self, schedule: str) -> bool:
        return self._allow_tf32 or is_exact(schedule)

    @property
    def speedup(self) -> float | None:
        """`dense_time_us` / `time_us`."""
        return self.dense_time_us / self.time_us if self.time_us and self.dense_time_us else None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "layers": list(self.names),
            "batch": self.batch,
            "trials": self.done,
            "new_trials": self.new,
            "out_of_time": self.is_out_of_time,
            "ended_early": self.early_end is not None,
            "time_us": self.time_us,
            "dense_time_us": self.dense_time_us,
            "speedup": self.speedup,
            "failures": dict(self.failures),
            "causes": self.causes.to_json(),
        }

    def line(self, trials: int, with_batch: bool = False) -> str:
        """One line: name, done/total, best against dense, failures by cause."""
        more = f" (+{len(self.names) - 1} alike)" if len(self.names) > 1 else ""
        more += f" batch {self.batch}" if with_batch else ""
        parts = [f"{self.names[0]}{more}  {self.done}/{max(trials, self.done)}"]
        if self.time_us and self.speedup:
            rivals = (f"{name} {cell(us)} us, {us / self.time_us:.2f}x" for name, us in self._rivals().items())
            parts.append(", ".join((f"{cell(self.time_us)} us", *rivals)))
        elif self.dense_time_us:
            parts.append(f"dense {cell(self.dense_time_us)} us")
        if self.failures:
            parts.append(", ".join(f"{count} {_FAILURES[status]}" for status, count in sorted(self.failures.items())))
        if self.is_out_of_time:
            parts.append("out of time")
        if self.early_end is not None:
            parts.append("ended early")
        return "  ".join(parts)

    def _rivals(self) -> dict[str, float]:
        """Times of the dense kernels that the fastest sparse kernel is compared with, by what people call them."""
        found = self._against
        if found is None:
            return {"dense": self._best_dense_us} if self._best_dense_us else {}
        times = {found.name: found.baseline, **found.others}
        return {title_of(name) if family_of(name).is_library else "dense": each.median for name, each in times.items()}
