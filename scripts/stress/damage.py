"""Random damage to files of lines and to nested lists, for `fuzz_logs` and the tests."""

import random
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


def part(data: bytearray, rng: random.Random, start: int, stop: int) -> None:
    """Lose some bytes, copy them to another place, or put zeros, as a file system may leave them, or others there."""
    # Few: damage of all sizes leaves most lines alone.
    where = slice(start, min(stop, start + 200))
    found = data[where]
    how = rng.randrange(3)
    if how == 0:
        place = rng.randrange(len(data) + 1)
        data[place:place] = found
    elif how == 1:
        del data[where]
    else:
        data[where] = bytes(len(found)) if rng.random() < 0.5 else rng.randbytes(len(found))


def lines(data: bytearray, rng: random.Random, *_: int) -> None:
    """Lose the end of a line, so that two become one; insert a line of nonsense; or exchange two lines."""
    found = bytes(data).split(b"\n")
    index, other, how = rng.randrange(len(found)), rng.randrange(len(found)), rng.randrange(3)
    if how == 0:
        found[index - 1 : index + 1] = [b"".join(found[index - 1 : index + 1])]
    elif how == 1:
        found.insert(index, rng.choice(NONSENSE))
    else:
        found[index], found[other] = found[other], found[index]
    data[:] = b"\n".join(found)


DAMAGES = (flip, flip, flip, cut, part, part, part, lines, lines, lines)


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
