"""Random damage to files of lines and to nested lists, for `fuzz_logs` and the tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NONSENSE = (b"", b"\0" * 30, b"nonsense", b'{"a":1}', b"\xff\xfe", b"[" * 5000, b"NaN", b'{"schema":99}', b"null")


def damage(data: bytearray, rng: random.Random) -> None:
    """Damage `data` in place, in one to four ways."""
    for _ in range(rng.randint(1, 4)):
        if data:
            rng.choice(DAMAGES)(data, rng, *sorted(rng.randrange(len(data) + 1) for _ in range(2)))


def flip(data: bytearray, rng: random.Random, start: int, _stop: int) -> None:
    """Flip a bit."""
    data[min(start, len(data) - 1)] ^= 1 << rng.randrange(8)


def cut(data: bytearray, _rng: random.Random, _start: int, stop: int) -> None:
    """Lose the end."""
    del data[stop:]


def short(start: int, stop: int) -> slice:
    """The first bytes of a range: damage of all sizes leaves most lines alone."""
    return slice(start, min(stop, start + 200))


def remove(data: bytearray, _rng: random.Random, start: int, stop: int) -> None:
    """Lose some bytes."""
    del data[short(start, stop)]


def repeat(data: bytearray, rng: random.Random, start: int, stop: int) -> None:
    """Copy some bytes to another place."""
    place = rng.randrange(len(data) + 1)
    data[place:place] = data[short(start, stop)]


def overwrite(data: bytearray, rng: random.Random, start: int, stop: int) -> None:
    """Zeros, as a file system may leave them, or random bytes."""
    part = data[short(start, stop)]
    data[short(start, stop)] = bytes(len(part)) if rng.random() < 0.5 else rng.randbytes(len(part))


def by_line(change: Callable[[list[bytes], random.Random, int], None]) -> Callable[..., None]:
    """A damage that changes the list of lines at a random place."""

    def changed(data: bytearray, rng: random.Random, *_: int) -> None:
        lines = bytes(data).split(b"\n")
        change(lines, rng, rng.randrange(len(lines)))
        data[:] = b"\n".join(lines)

    return changed


@by_line
def join(lines: list[bytes], _rng: random.Random, index: int) -> None:
    """Lose the end of a line, so that two become one."""
    lines[index - 1 : index + 1] = [b"".join(lines[index - 1 : index + 1])]


@by_line
def insert(lines: list[bytes], rng: random.Random, index: int) -> None:
    """Insert a line of nonsense."""
    lines.insert(index, rng.choice(NONSENSE))


@by_line
def swap(lines: list[bytes], rng: random.Random, index: int) -> None:
    """Exchange two lines."""
    other = rng.randrange(len(lines))
    lines[index], lines[other] = lines[other], lines[index]


DAMAGES = (flip, flip, flip, cut, remove, repeat, overwrite, join, insert, swap)


def damage_list(values: list[Any], rng: random.Random) -> None:
    """Change, replace, remove or repeat a random part of nested lists."""
    while values:
        index = rng.randrange(len(values))
        value = values[index]
        if isinstance(value, list) and value and rng.random() < 0.9:
            values = value
            continue
        how = rng.randrange(4)
        if how == 0 and type(value) is int:
            values[index] = value + rng.choice([-1, 1, 64])
        elif how <= 1:
            values[index] = rng.choice([None, -1, 0, 1, 7, 2**40, "x", "b0", [], {}, 1.5, True])
        elif how == 2:
            del values[index]
        else:
            values.insert(index, value)
        return
