"""After which of the calls before it a call has to run, by the memory that they read and write."""

from collections.abc import Sequence
from typing import NamedTuple

# Addresses of memory, from the first to behind the last.
Span = tuple[int, int]


class _Call(NamedTuple):
    """The numbers of all calls that it runs after, and what it reads and writes."""

    earlier: frozenset[int]
    reads: Sequence[Span]
    writes: Sequence[Span]

    def conflicts(self, reads: Sequence[Span], writes: Sequence[Span]) -> bool:
        """Whether a call that reads and writes these has to run after this one."""
        return _meet(self.writes, reads) or _meet(self.writes, writes) or _meet(self.reads, writes)


class CallOrder:
    """Calls, added in an order that is right. How memory was planned does not matter."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def add(self, reads: Sequence[Span], writes: Sequence[Span]) -> list[int]:
        """Numbers of the calls that the next one runs after, without those that another one of them runs after.

        None: it could be the first, and stays behind the one before it.
        """
        parents, earlier = list[int](), frozenset[int]()
        for number, call in reversed(list(enumerate(self._calls))):
            if number not in earlier and call.conflicts(reads, writes):
                parents.append(number)
                earlier |= call.earlier | {number}
        if self._calls and not parents:
            earlier = self._calls[-1].earlier | {len(self._calls) - 1}
        self._calls.append(_Call(earlier, reads, writes))
        return parents

    def ends(self) -> list[int]:
        """Numbers of the calls after which none runs."""
        followed = frozenset[int]().union(*(each.earlier for each in self._calls))
        return [number for number in range(len(self._calls)) if number not in followed]


def _meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(start < other_end and other_start < end for start, end in some for other_start, other_end in others)
