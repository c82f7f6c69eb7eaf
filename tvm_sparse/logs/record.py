"""TuningRecord: what one trial found, as one self-contained JSON line.

A line refers to no other line, so logs can be appended to, split, sorted and merged as plain text.
The codec is strict both ways: what it cannot read back exactly, it does not write. A line ends with a checksum of the
rest, so that a damaged digit of a time is noticed and does not win.
"""

from __future__ import annotations

import json
import math
import reprlib
import statistics
import sys
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.logs.record_codec import (
    CHECKSUM,
    SCHEMA,
    WHERE,
    _check_pattern,
    _check_schema,
    _check_timestamp,
    _check_types,
    _checksum,
    _decode,
    _dumps,
    _finite,
    _hints,
    _wrong,
)
from tvm_sparse.measure.outcome import Status

# What decides whether a record holds on a machine; every fingerprint has them, as text.
FINGERPRINT_KEYS = ("kind", "arch", "threads", "tvm")


def utc_now() -> str:
    """This moment in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def decisions_key(decisions: dict[str, Any]) -> str:
    """A text that is the same for equal decisions, whatever their order."""
    return _dumps("decisions", decisions)


@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """One measured (or failed) candidate kernel of one convolution. All fields are keyword-only.

    Parameters
    ----------
    spec, pattern
        The convolution, and the zeros of the weight it ran with.
    schedule
        Name of the schedule space; names that start with ``dense`` ignore the zeros.
    trace, decisions
        The MetaSchedule trace (None: the schedule's defaults) and the sampled decisions; plain JSON values.
    status, cause
        ``ok``, or how it failed and the message that says why.
    times_us
        All run times, microseconds each; an ``ok`` record has one or more.
    dense_times_us, dense_schedule
        Run times, in the same run, of the dense kernel it competes with, and that kernel's name.
    error
        Largest error as a fraction of its bound (`Reference.worst`), 1 or less if ``ok``; None: not verified,
        or not finite.
    target, fingerprint
        The TVM target as JSON, and the machine (`environment.fingerprint`).
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
    trace: Any
    decisions: dict[str, Any]
    status: Status
    cause: str = ""
    times_us: tuple[float, ...] = ()
    dense_times_us: tuple[float, ...] = ()
    dense_schedule: str = ""
    error: float | None = None
    target: dict[str, Any]
    fingerprint: dict[str, Any]
    seed: int
    timestamp: str = field(default_factory=utc_now)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        _check_types(WHERE, {name: getattr(self, name) for name in _hints(TuningRecord)}, TuningRecord)
        _check_pattern(self.spec, self.pattern)
        if self.schema != SCHEMA:
            _wrong("schema", self.schema, str(SCHEMA))
        if not self.schedule:
            _wrong("schedule", "no name", "the name of a schedule space")
        for name in ("times_us", "dense_times_us"):
            for time_us in getattr(self, name):
                if not 0 < time_us <= sys.float_info.max:
                    _wrong(name, time_us, "finite times above 0")
        if self.status == "ok" and not self.times_us:
            _wrong("times_us", "no time", "one or more where status is ok")
        if bool(self.dense_times_us) != bool(self.dense_schedule):
            _wrong("dense_schedule", repr(self.dense_schedule), "a name if, and only if, there are dense_times_us")
        if self.error is not None and not 0 <= self.error <= (1 if self.status == "ok" else sys.float_info.max):
            _wrong("error", self.error, "a finite fraction of the bound, at most 1 where status is ok, or None")
        for name in FINGERPRINT_KEYS:
            if not isinstance(self.fingerprint.get(name), str):
                _wrong(f"fingerprint {name!r}", reprlib.repr(self.fingerprint.get(name)), "a text")
        _check_timestamp(self.timestamp)

    @property
    def time_us(self) -> float:
        """Median run time in microseconds; infinite for a candidate that never ran."""
        return statistics.median(self.times_us) if self.times_us else math.inf

    @property
    def dense_time_us(self) -> float | None:
        """Median run time of the dense kernel of the same run in microseconds; None: not measured."""
        return statistics.median(self.dense_times_us) if self.dense_times_us else None

    @property
    def speedup(self) -> float | None:
        """`dense_time_us` / `time_us`; None where dense was not measured."""
        return None if self.dense_time_us is None else self.dense_time_us / self.time_us

    @property
    def is_dense(self) -> bool:
        """Whether the kernel ignores the zeros."""
        return self.schedule.startswith("dense")

    def is_trial_of(self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any]) -> bool:
        """Whether it was made of this convolution, for this weight, on this machine.

        Dense kernels count whatever weight they ran with: their time does not depend on its values.
        """
        same_weight = self.is_dense or self.pattern.value_digest == pattern.value_digest
        same_machine = all(self.fingerprint[name] == fingerprint[name] for name in FINGERPRINT_KEYS)
        return self.spec == spec and same_weight and same_machine

    def to_line(self) -> str:
        """One line of ASCII JSON with sorted keys and a checksum, without a newline; tuples in `trace` become lists.

        Raises
        ------
        LogError
            `trace`, `decisions`, `target` or `fingerprint` hold something that is not plain, finite JSON.
        """
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        body = _dumps(WHERE, {**values, "spec": self.spec.to_json(), "pattern": self.pattern.to_json()})
        return f'{body[:-1]},"{CHECKSUM}":"{_checksum(body)}"}}'

    @classmethod
    def from_line(cls, line: str) -> TuningRecord:
        """The record that `to_line` wrote; every number comes back exactly.

        Raises
        ------
        NewerSchemaError
            A newer tvm-sparse wrote the line.
        LogError
            The line is damaged or no record; the sentence says where.
        """
        if not line.strip():
            raise LogError(WHERE, "the line is empty")
        try:
            data = json.loads(line, parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError) as error:
            raise LogError(WHERE, f"the line is not JSON ({error})") from error
        if isinstance(data, dict):
            _check_schema(data)
        record: TuningRecord = _decode(WHERE, data, cls)
        return record
