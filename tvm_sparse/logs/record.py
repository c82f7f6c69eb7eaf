"""TuningRecord: what one trial found, as one self-contained JSON line.

A line refers to no other line, so logs can be appended to, split, sorted and merged as plain text (`record_codec`).
"""

import math
import reprlib
import statistics
import sys
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.logs import record_codec
from tvm_sparse.logs.record_codec import SCHEMA
from tvm_sparse.measure.call_row import is_timed_cold
from tvm_sparse.measure.outcome import Status

if TYPE_CHECKING:
    from tvm_sparse.scheduling.family import KernelFamily

# What decides whether a record holds on a machine; every fingerprint has them, as text.
FINGERPRINT_KEYS = ("kind", "arch", "threads", "tvm")
WHERE = "tuning record"
# Of other times sums and ratios may be infinite.
LEAST_TIME_US, MOST_TIME_US = 1e-6, 1e30
TIMES = f"times of {LEAST_TIME_US:g} to {MOST_TIME_US:g} us"


def utc_now() -> str:
    """This moment in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def decisions_key(decisions: dict[str, Any] | list[Any] | None) -> str:
    """A text that is the same for equal decisions, whatever their order."""
    # A space in which nothing is decided has none.
    return record_codec.dumps("decisions", decisions or None)


@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """One measured (or failed) candidate kernel of one convolution. All fields are keyword-only.

    Parameters
    ----------
    spec, pattern
        The convolution, and the zeros of the weight it ran with.
    schedule
        Name of the schedule space.
    decisions
        The space's decisions by name, as JSON values; none: its defaults.
    trace
        MetaSchedule's trace, where it generated the space, which has no names for its decisions; else None.
    status, cause
        ``ok``, or how it failed and the message that says why.
    times_us
        All run times, microseconds each; an ``ok`` record has one or more. The kernel's code is warm: it was called
        many times in a row.
    baseline, dense_times_us
        Name of the dense kernel it competes with, and its run times in the same run; empty where there was none.
    cold_times_us, dense_cold_times_us
        Run times of both with cold code, as in a model (docs/lab/clock.md); None: not measured. They count where they
        are there, of the baseline too if there is one.
    unconverted_times_us, unconverted_cold_times_us
        Run times of the same kernel between layers like it, without conversions of its tensors; empty: it has none, or
        they were not taken.
    library_times_us, library_cold_times_us
        Run times of further dense kernels in the same run, a library's, by schedule: what TF32 would take among them.
    error
        Largest error as a fraction of its bound (`Reference.worst`), 1 or less if ``ok``; None: not verified,
        or not finite.
    target, fingerprint
        The TVM target as JSON, and the machine (`target.fingerprint.fingerprint_of`).
    seed, timestamp
        Of the search, and UTC ISO 8601.

    Raises
    ------
    LogError
        A field has the wrong type or an impossible value; the sentence names it.
    """

    spec: ConvSpec
    pattern: SparsityPattern
    schedule: str
    decisions: dict[str, Any]
    trace: list[Any] | None = None
    status: Status
    cause: str = ""
    times_us: tuple[float, ...] = ()
    dense_times_us: tuple[float, ...] = ()
    cold_times_us: tuple[float, ...] | None = None
    dense_cold_times_us: tuple[float, ...] | None = None
    unconverted_times_us: tuple[float, ...] = field(default_factory=tuple, metadata={"optional": True})
    unconverted_cold_times_us: tuple[float, ...] = field(default_factory=tuple, metadata={"optional": True})
    library_times_us: dict[str, Any] = field(default_factory=dict, metadata={"optional": True})
    library_cold_times_us: dict[str, Any] = field(default_factory=dict, metadata={"optional": True})
    baseline: str = ""
    error: float | None = None
    target: dict[str, Any]
    fingerprint: dict[str, Any]
    seed: int
    timestamp: str = field(default_factory=utc_now)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        hints = record_codec.hints_of(TuningRecord)
        record_codec.check_types(WHERE, {name: getattr(self, name) for name in hints}, TuningRecord)
        _check_pattern(self.spec, self.pattern)
        if self.schema != SCHEMA:
            _wrong("schema", self.schema, str(SCHEMA))
        if not self.schedule:
            _wrong("schedule", "no name", "the name of a schedule space")
        if self.trace is not None and self.decisions:
            _wrong("decisions", reprlib.repr(self.decisions), "none where there is a trace, which holds them")
        self._check_times()
        if self.error is not None and not 0 <= self.error <= (1 if self.status == "ok" else sys.float_info.max):
            _wrong("error", self.error, "a finite fraction of the bound, at most 1 where status is ok, or None")
        for name in FINGERPRINT_KEYS:
            if not isinstance(self.fingerprint.get(name), str):
                _wrong(f"fingerprint {name!r}", reprlib.repr(self.fingerprint.get(name)), "a text")
        if not record_codec.is_utc(self.timestamp):
            _wrong("timestamp", reprlib.repr(self.timestamp), "UTC, ISO 8601, such as 2026-11-20T09:30:00+00:00")

    def _check_times(self) -> None:
        for name in (f"{of}{clock}times_us" for of in ("", "dense_", "unconverted_") for clock in ("", "cold_")):
            for time_us in getattr(self, name) or ():
                if not LEAST_TIME_US <= time_us <= MOST_TIME_US:
                    _wrong(name, time_us, TIMES)
        for name in ("library_times_us", "library_cold_times_us"):
            for schedule, times_us in getattr(self, name).items():
                if not _are_times(times_us):
                    _wrong(f"{name} of {reprlib.repr(schedule)}", reprlib.repr(times_us), TIMES)
        if self.status == "ok" and not self.times_us:
            _wrong("times_us", "no time", "one or more where status is ok")
        if bool(self.dense_times_us) != bool(self.baseline):
            _wrong("baseline", repr(self.baseline), "a name if, and only if, there are dense_times_us")

    @property
    def chosen(self) -> dict[str, Any] | list[Any] | None:
        """The decisions with which the space is scheduled again: by name, or the trace; None: its defaults."""
        return self.trace if self.trace is not None else self.decisions or None

    @property
    def is_cold(self) -> bool:
        """Whether the times that count were taken with cold code."""
        return bool(self.cold_times_us) and (bool(self.dense_cold_times_us) or not self.dense_times_us)

    @property
    def counting_times_us(self) -> tuple[float, ...]:
        """The run times that count: with cold code, as in a model, where they were measured, else warm."""
        return (self.is_cold and self.cold_times_us) or self.times_us

    @property
    def counting_dense_times_us(self) -> tuple[float, ...]:
        """Run times of the dense kernel of the same run, as `counting_times_us`; empty: not measured."""
        return (self.is_cold and self.dense_cold_times_us) or self.dense_times_us

    @property
    def counting_library_times_us(self) -> dict[str, Any]:
        """Run times of the library's kernels in the same run, by schedule, as `counting_times_us`."""
        return self.library_cold_times_us if self.is_cold else self.library_times_us

    @property
    def time_us(self) -> float:
        """Median of `counting_times_us`, microseconds; infinite for a candidate that never ran."""
        return statistics.median(self.counting_times_us) if self.times_us else math.inf

    @property
    def unconverted_time_us(self) -> float | None:
        """Median time without conversions by the clock that counts, microseconds; None: not measured."""
        times_us = (self.is_cold and self.unconverted_cold_times_us) or self.unconverted_times_us
        return statistics.median(times_us) if times_us else None

    @property
    def warm_time_us(self) -> float:
        """Median run time with warm code, microseconds; infinite for a candidate that never ran."""
        return statistics.median(self.times_us) if self.times_us else math.inf

    @property
    def dense_time_us(self) -> float | None:
        """Median of `counting_dense_times_us`, microseconds; None: not measured."""
        return statistics.median(self.counting_dense_times_us) if self.dense_times_us else None

    @property
    def speedup(self) -> float | None:
        """`dense_time_us` / `time_us`; None where dense was not measured."""
        return None if self.dense_time_us is None else self.dense_time_us / self.time_us

    @property
    def family(self) -> "KernelFamily":
        """What is known of kernels of its schedule."""
        # Files of records are read and written without TVM, which families need.
        from tvm_sparse.schedules.lookup import family_of

        return family_of(self.schedule)

    @property
    def is_known(self) -> bool:
        """Whether this version has its schedule."""
        return bool(self.family.name)

    @property
    def is_exact(self) -> bool:
        """Whether the kernel computes to float32's accuracy, however tensors are stored."""
        from tvm_sparse.schedules.lookup import is_exact

        return is_exact(self.schedule)

    @property
    def is_dense(self) -> bool:
        """Whether the kernel ignores the zeros."""
        return self.family.is_dense

    @property
    def is_pooled(self) -> bool:
        """Whether the kernel computes the max pool behind its layer too."""
        return self.family.computes_pool

    @property
    def is_tf32(self) -> bool:
        """Whether the kernel may round its inputs to TF32."""
        return not self.is_exact

    def is_trial_of(self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any]) -> bool:
        """Whether it was made of this convolution, for this weight, on this machine.

        Dense kernels count whatever weight they ran with: their time does not depend on its values. Where times with
        cold code are taken, a trial without them does not count.
        """
        lacks_cold = self.status == "ok" and not self.is_cold and is_timed_cold(fingerprint["kind"], pattern.nnz)
        same_weight = self.is_dense or self.pattern.value_digest == pattern.value_digest
        same_machine = all(self.fingerprint[name] == fingerprint[name] for name in FINGERPRINT_KEYS)
        return self.spec == spec and same_weight and same_machine and not lacks_cold

    def to_line(self) -> str:
        """One line of ASCII JSON with sorted keys and a checksum, without a newline; tuples in `trace` become lists.

        Raises
        ------
        LogError
            `trace`, `decisions`, `target` or `fingerprint` hold something that is not plain, finite JSON.
        """
        return self._line

    @cached_property
    def _line(self) -> str:
        optional = record_codec.optional_fields(TuningRecord)
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values = {name: value for name, value in values.items() if name not in optional or value != optional[name]()}
        return record_codec.to_line(WHERE, {**values, "spec": self.spec.to_json(), "pattern": self.pattern.to_json()})

    @classmethod
    def from_line(cls, line: str) -> "TuningRecord":
        """The record that `to_line` wrote; every number comes back exactly.

        Raises
        ------
        NewerSchemaError
            A newer tvm-sparse wrote the line.
        LogError
            The line is damaged, of an older schema or no record; the sentence says where.
        """
        sealed = record_codec.is_sealed(line)
        values = record_codec.from_line(WHERE, line, sealed)
        record: TuningRecord = record_codec.decode(WHERE, values, cls, checks_types=False)
        # `to_line` leaves out what is as it is by default.
        if sealed and not any(
            name in values and getattr(record, name) == make()
            for name, make in record_codec.optional_fields(TuningRecord).items()
        ):
            record.__dict__["_line"] = line.rstrip("\n")
        return record


def _wrong(name: str, found: object, allowed: str) -> NoReturn:
    raise LogError(WHERE, f"{name} is not usable", found, allowed)


def _are_times(value: Any) -> bool:
    """Whether `value` is one or more run times."""
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(type(each) in (int, float) and LEAST_TIME_US <= each <= MOST_TIME_US for each in value)
    )


def _check_pattern(spec: ConvSpec, pattern: SparsityPattern) -> None:
    if pattern.size != math.prod(spec.weight_shape):
        _wrong("pattern.size", pattern.size, f"{math.prod(spec.weight_shape)}, the size of the weight")
    for name, most in (("nnz", pattern.size), ("dead_filters", spec.k), ("dead_channels", spec.weight_shape[1])):
        if not 0 <= getattr(pattern, name) <= most:
            _wrong(f"pattern.{name}", getattr(pattern, name), f"0 to {most}")
