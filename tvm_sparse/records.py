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
import types
import zlib
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import LogError, ModelError
from tvm_sparse.pattern import SparsityPattern

# Schema 2 is schema 1 with `CHECKSUM`; lines of both are read.
SCHEMA = 2
# The last key of a line: CRC-32, 8 hex digits, of the line's canonical JSON (sorted keys, no spaces) without this key.
# Newer schemas keep it, so that a damaged line is not mistaken for one of a newer tvm-sparse.
CHECKSUM = "zlib_crc32"
Status = Literal["ok", "build_failed", "run_failed", "timeout", "wrong", "rejected"]
# What decides whether a record holds on a machine; every fingerprint has them, as text.
FINGERPRINT_KEYS = ("kind", "arch", "threads", "tvm")

WHERE = "tuning record"


class NewerSchemaError(LogError):
    """The line is sound, but a newer tvm-sparse wrote it."""


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


def _check_schema(data: dict[str, Any]) -> None:
    """Check a line's checksum and make it the object that schema `SCHEMA` decodes; see `TuningRecord.from_line`."""
    schema = data.get("schema")
    if type(schema) is not int or schema < 1:
        return
    if schema == 1:
        data["schema"] = SCHEMA
        return
    found = data.pop(CHECKSUM, None)
    if found != _checksum(_dumps(WHERE, data)):
        raise LogError(WHERE, "the line does not match its checksum, so it is damaged", reprlib.repr(found))
    if schema > SCHEMA:
        raise NewerSchemaError(
            WHERE, "written by a newer tvm-sparse", f"schema {schema}", f"up to {SCHEMA}", "upgrade tvm-sparse"
        )


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _dumps(where: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise LogError(
            where, f"is not plain JSON ({error})", hint="convert it to dict, list, str, int, float"
        ) from error


def _finite(text: str) -> float:
    """Reads a JSON number; Python would take ``NaN``, ``Infinity`` and ``1e999`` too."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _decode(where: str, data: Any, cls: Any) -> Any:
    """A dataclass from its JSON object, which must hold exactly its fields."""
    if not isinstance(data, dict):
        raise LogError(where, "is not a JSON object", reprlib.repr(data))
    hints = _hints(cls)
    for problem, names in (("missing", hints.keys() - data.keys()), ("unknown", data.keys() - hints.keys())):
        if names:
            raise LogError(where, f"{problem} field {reprlib.repr(sorted(names))}", allowed=f"schema {SCHEMA}")
    values = {}
    for name, hint in hints.items():
        value = data[name]
        if is_dataclass(hint):
            value = _decode(f"{where}, {name}", value, hint)
        elif get_origin(hint) is tuple and isinstance(value, list):
            value = tuple(value)
        values[name] = value
    _check_types(where, values, cls)
    try:
        return cls(**values)
    except ModelError as error:
        raise LogError(where, str(error)) from error


def _check_types(where: str, values: dict[str, Any], cls: Any) -> None:
    for name, hint in _hints(cls).items():
        if not _fits(values[name], hint):
            allowed = getattr(hint, "__name__", "") if isinstance(hint, type) and not get_args(hint) else str(hint)
            raise LogError(where, f"{name} has the wrong type or value", reprlib.repr(values[name]), allowed)


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` has the type `hint`; a bool is no number."""
    if hint is Any:
        return True
    if hint is int:
        return type(value) is int
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        items = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(value) == len(items) and all(map(_fits, value, items))
    return isinstance(value, hint)


def _wrong(name: str, found: object, allowed: str) -> NoReturn:
    raise LogError(WHERE, f"{name} is not usable", found, allowed)


def _check_pattern(spec: ConvSpec, pattern: SparsityPattern) -> None:
    if pattern.size != math.prod(spec.weight_shape):
        _wrong("pattern.size", pattern.size, f"{math.prod(spec.weight_shape)}, the size of the weight")
    for name, most in (("nnz", pattern.size), ("dead_filters", spec.k), ("dead_channels", spec.weight_shape[1])):
        if not 0 <= getattr(pattern, name) <= most:
            _wrong(f"pattern.{name}", getattr(pattern, name), f"0 to {most}")


def _check_timestamp(text: str) -> None:
    try:
        # Python 3.10 does not read the suffix Z.
        offset = datetime.fromisoformat(text.replace("Z", "+00:00")).utcoffset()
    except ValueError:
        offset = None
    if offset != timedelta(0):
        _wrong("timestamp", reprlib.repr(text), "UTC, ISO 8601, such as 2026-11-20T09:30:00+00:00")
