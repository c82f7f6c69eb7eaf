"""The two kinds of decisions that a schedule asks for: which values they may have, and how logs keep these."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


@dataclass(frozen=True)
class OneOf:
    """A decision for one of some integers, ascending; members of an IntEnum have their names in logs."""

    values: tuple[int, ...]

    def to_json(self, value: int) -> int | str:
        """A sampled value as logs keep it."""
        member = self.values[self.values.index(value)]
        return member.name.lower() if isinstance(member, IntEnum) else member

    def from_json(self, found: Any) -> int | None:
        """What `to_json` made that of; None where it is none of the values."""
        return next((v for v in self.values if self.to_json(v) == found and not isinstance(found, (bool, float))), None)

    def __str__(self) -> str:
        return f"one of {', '.join(str(self.to_json(value)) for value in self.values)}"


@dataclass(frozen=True)
class Split:
    """A decision for the extents of `parts` loops, outermost first, that one of `extent` is split into.

    The innermost is `most_innermost` at the most.
    """

    extent: int
    parts: int
    most_innermost: int

    def to_json(self, value: list[int]) -> list[int]:
        """A sampled value as logs keep it."""
        return value

    def from_json(self, found: Any) -> list[int] | None:
        """What `to_json` made that of; None where it is no such split."""
        whole = isinstance(found, list) and len(found) == self.parts and all(type(each) is int for each in found)
        fits = whole and min(found) > 0 and math.prod(found) == self.extent and found[-1] <= self.most_innermost
        return found if fits else None

    def __str__(self) -> str:
        return f"{self.parts} integers whose product is {self.extent}, the last {self.most_innermost} or less"
