"""Dataclass <-> strict JSON line with checksum."""

from __future__ import annotations

import json
import math
import reprlib
import types
import zlib
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError, ModelError

# Schema 2 is schema 1 with `CHECKSUM`; lines of both are read.
SCHEMA = 2
# The last key of a line: CRC-32, 8 hex digits, of the line's canonical JSON (sorted keys, no spaces) without this key.
# Newer schemas keep it, so that a damaged line is not mistaken for one of a newer tvm-sparse.
CHECKSUM = "zlib_crc32"
WHERE = "tuning record"


class NewerSchemaError(LogError):
    """The line is sound, but a newer tvm-sparse wrote it."""


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
