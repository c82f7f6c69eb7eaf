"""Dataclasses as strict lines of JSON with a checksum: what cannot be read back exactly is not written.

A line ends with a checksum of the rest, so that a damaged digit of a time is noticed and does not win.
"""

import json
import reprlib
import types
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tvm_sparse.errors import LogError, ModelError
from tvm_sparse.untrusted.json_text import loads

SCHEMA = 3
# The last key of a line: CRC-32, 8 hex digits, of the line's canonical JSON (sorted keys, no spaces) without this key.
# Newer schemas keep it, so that a damaged line is not mistaken for one of a newer tvm-sparse. Who writes a line by hand
# may leave it out.
CHECKSUM = "zlib_crc32"
# What comes before the checksum of a line that was written here.
_SEAL = f',"{CHECKSUM}":"'


class NewerSchemaError(LogError):
    """The line is sound, but a newer tvm-sparse wrote it."""


def to_line(where: str, values: dict[str, Any]) -> str:
    """`values` as one line of ASCII JSON with sorted keys and a checksum, without a newline.

    LogError where they hold something that is not plain, finite JSON.
    """
    body = dumps(where, values)
    return f'{body[:-1]},"{CHECKSUM}":"{_checksum(body)}"}}'


def from_line(where: str, line: str, sealed: bool = False) -> Any:
    """The JSON value in a line whose schema and checksum are right; `sealed`: it `is_sealed`.

    NewerSchemaError where a newer tvm-sparse wrote the line. LogError where the line is damaged, or older than
    `SCHEMA`.
    """
    if not line.strip():
        raise LogError(where, "the line is empty")
    try:
        data = loads(line)
    except ValueError as error:
        raise LogError(where, f"the line is not JSON ({error})") from error
    if isinstance(data, dict):
        _check_schema(where, data, sealed)
    return data


def is_sealed(line: str) -> bool:
    """Whether a line is as `to_line` writes it, by the checksum at its end.

    Thousands of lines are read in half of the time where none has to be written again to see that.
    """
    body, _, end = line.rpartition(_SEAL)
    return end[8:] in ('"}', '"}\n') and end[:8] == _checksum(body + "}")


def _check_schema(where: str, data: dict[str, Any], sealed: bool) -> None:
    """Check a line's schema and checksum, which is taken out; that of a `sealed` one is right."""
    schema = data.get("schema")
    if type(schema) is int and 1 <= schema < SCHEMA:
        hint = "tune again, or read it with the tvm-sparse that wrote it"
        raise LogError(where, "the line has an older form", f"schema {schema}", f"schema {SCHEMA}", hint)
    found = data.pop(CHECKSUM, None)
    # By hand only this schema is written.
    is_newer = type(schema) is int and schema > SCHEMA
    if (found is not None or is_newer) and not sealed and found != _checksum(dumps(where, data)):
        raise LogError(where, "the line does not match its checksum, so it is damaged", reprlib.repr(found))
    if is_newer:
        raise NewerSchemaError(
            where, "written by a newer tvm-sparse", f"schema {schema}", f"up to {SCHEMA}", "upgrade tvm-sparse"
        )


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def dumps(where: str, value: Any) -> str:
    """`value` as canonical JSON; LogError where it is not plain and finite."""
    try:
        return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise LogError(
            where, f"is not plain JSON ({error})", hint="convert it to dict, list, str, int, float"
        ) from error


@cache
def hints_of(cls: Any) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    return get_type_hints(cls)


@cache
def optional_fields(cls: Any) -> dict[str, Any]:
    """Field -> what makes the value of those that a line lacks where they have that value.

    They are newer than their schema, whose older lines stay as they are.
    """
    return {each.name: each.default_factory for each in fields(cls) if each.metadata.get("optional")}


@cache
def _tuples_of(cls: Any) -> frozenset[str]:
    """The fields of a dataclass that may hold a tuple, which JSON has as a list."""
    hints = hints_of(cls).items()
    return frozenset(name for name, hint in hints if tuple in [get_origin(each) for each in (hint, *get_args(hint))])


def decode(where: str, data: Any, cls: Any, checks_types: bool = True) -> Any:
    """A dataclass from its JSON object, which must hold exactly its fields; without `checks_types` it checks itself."""
    if not isinstance(data, dict):
        raise LogError(where, "is not a JSON object", reprlib.repr(data))
    hints = hints_of(cls)
    data = {**{name: make() for name, make in optional_fields(cls).items()}, **data}
    for problem, names in (("missing", hints.keys() - data.keys()), ("unknown", data.keys() - hints.keys())):
        if names:
            raise LogError(where, f"{problem} field {reprlib.repr(sorted(names))}", allowed=f"schema {SCHEMA}")
    for name, hint in _dataclasses_of(cls).items():
        data[name] = _part(f"{where}, {name}", data[name], hint)
    for name in _tuples_of(cls):
        if isinstance(data[name], list):
            data[name] = tuple(data[name])
    if checks_types:
        check_types(where, data, cls)
    try:
        return cls(**data)
    except ModelError as error:
        raise LogError(where, str(error)) from error


# Convolutions and zeros that were read, by their text: most are in many lines.
_PARTS: dict[tuple[Any, str], Any] = {}
_MOST_PARTS = 1 << 13


def _part(where: str, data: Any, cls: Any) -> Any:
    """As `decode`, which an equal text does not need a second time."""
    key = cls, repr(data)
    if key not in _PARTS:
        if len(_PARTS) >= _MOST_PARTS:
            _PARTS.clear()
        _PARTS[key] = decode(where, data, cls)
    return _PARTS[key]


@cache
def _dataclasses_of(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass that are dataclasses."""
    return {name: hint for name, hint in hints_of(cls).items() if is_dataclass(hint)}


def check_types(where: str, values: dict[str, Any], cls: Any) -> None:
    """Raise LogError where the value of a field of `cls` has not its type."""
    for name, fits in _tests_of(cls).items():
        if not fits(values[name]):
            hint = hints_of(cls)[name]
            allowed = getattr(hint, "__name__", "") if isinstance(hint, type) and not get_args(hint) else str(hint)
            raise LogError(where, f"{name} has the wrong type or value", reprlib.repr(values[name]), allowed)


@cache
def _tests_of(cls: Any) -> dict[str, Callable[[Any], bool]]:
    """For each field of a dataclass, what tells whether a value has its type."""
    return {name: _test_of(hint) for name, hint in hints_of(cls).items()}


def _test_of(hint: Any) -> Callable[[Any], bool]:
    """What tells whether a value has the type `hint`; a bool is no number."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if hint is int:
        return lambda value: type(value) is int
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if origin is types.UnionType:
        tests = [_test_of(argument) for argument in arguments]
        return lambda value: any(test(value) for test in tests)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in arguments
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if origin is tuple:
        return _test_of_tuple(arguments)
    return lambda value: isinstance(value, origin or hint)


def _test_of_tuple(arguments: tuple[Any, ...]) -> Callable[[Any], bool]:
    """As `_test_of`, of a tuple of those items, or of any number of the first where an ellipsis is the last."""
    tests = [_test_of(argument) for argument in arguments if argument is not Ellipsis]
    if arguments == (float, ...):
        # Most are plain; NumPy's are numbers too.
        return lambda value: (
            isinstance(value, tuple) and (set(map(type, value)) <= {int, float} or all(map(tests[0], value)))
        )
    if arguments[-1] is Ellipsis:
        return lambda value: isinstance(value, tuple) and all(map(tests[0], value))
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(tests)
        and all(test(item) for test, item in zip(tests, value, strict=True))
    )


def is_utc(text: str) -> bool:
    """Whether a text is a moment in UTC, ISO 8601."""
    try:
        # Python 3.10 does not read the suffix Z.
        return datetime.fromisoformat(text.replace("Z", "+00:00")).utcoffset() == timedelta(0)
    except ValueError:
        return False
