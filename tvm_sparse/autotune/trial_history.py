"""Trials: what a search knows already, so that an interrupted one goes on exactly as if it had not been interrupted.

A search is decided by its seed and by the times that it is told. So the trials that a log holds of the same seed are
not learnt at once: the search starts again, and each time that it proposes one of them, it is told the recorded time
instead of measuring. It has met them all where the interrupted search ended, and is in the same state. Trials of other
seeds were known from the start, and are now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.scheduling.space import Space

if TYPE_CHECKING:
    pass
from collections.abc import Callable

from tvm_sparse.logs.record import decisions_key
from tvm_sparse.scheduling.trace import decisions

# A schedule's name and `decisions_key` of its decisions.
Key = tuple[str, str]
# A space and the JSON trace of one of its candidates.
Proposal = tuple[Space, Any]


class Trials(dict[Key, TuningRecord]):
    """The trials of a search by candidate; `pending` are those of an earlier run that it has not met again yet.

    Parameters
    ----------
    records
        Trials of the same weight and machine, in the order of the log.
    seed
        Of this search.
    """

    def __init__(self, records: Iterable[TuningRecord], seed: int):
        super().__init__()
        self.pending: dict[Key, TuningRecord] = {}
        for record in records:
            (self.pending if record.seed == seed else self)[key_of(record)] = record
        # What this search measured itself, nobody had measured before it.
        for key in self.keys() & self.pending.keys():
            del self[key]

    @property
    def count(self) -> int:
        """All trials, pending ones included."""
        return len(self) + len(self.pending)

    def meet(self, key: Key) -> bool:
        """Whether a candidate has been measured, now or in an earlier run."""
        if key in self.pending:
            self[key] = self.pending.pop(key)
        return key in self

    def give_up(self, of_schedule: Callable[[str], bool]) -> list[TuningRecord]:
        """Learn at once the pending trials whose schedule's name fulfils `of_schedule`, which are returned.

        This search will not meet them: it has other options, or a record of the earlier run was lost.
        """
        found = [record for record in self.pending.values() if of_schedule(record.schedule)]
        for record in found:
            self.meet(key_of(record))
        return found


def key_of(record: TuningRecord) -> Key:
    """The candidate that a record is a trial of."""
    return record.schedule, decisions_key(record.decisions)


def key_of_trace(each: Space, trace: Any) -> Key:
    """The candidate that a JSON trace of a space is."""
    return each.name, decisions_key(decisions(trace))
