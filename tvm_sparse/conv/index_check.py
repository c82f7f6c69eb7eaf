"""IndexCheck: which indices an operator may be given, and whether those of a call were."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# The type in which bounds of indices are told.
INT64 = "int64"


@dataclass(frozen=True)
class IndexCheck:
    """An operator that reads or writes where its input says, and what that input may say.

    * `where`: the operator, as errors name it.
    * `ranges`: the lowest and the highest index, for each coordinate that an index has.
    """

    where: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many numbers `wrong` takes."""
        return 2 * len(self.ranges)

    def wrong(self, bounds: Sequence[int]) -> tuple[int, str] | None:
        """An index out of its range and the words for that range; None where there is none.

        `bounds` are the lowest indices that were found, one for each coordinate, and then the highest.
        """
        count = len(self.ranges)
        for (low, high), least, most in zip(self.ranges, bounds[:count], bounds[count:], strict=True):
            if not low <= least <= most <= high:
                return int(least if least < low else most), f"{low} to {high}"
        return None

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "IndexCheck":
        """Rebuild a check from `to_json`'s output."""
        return cls(str(data["where"]), tuple((int(low), int(high)) for low, high in data["ranges"]))


def total_size(checks: Sequence[IndexCheck]) -> int:
    """How many numbers all of `checks` take, one after the other."""
    return sum(check.size for check in checks)
