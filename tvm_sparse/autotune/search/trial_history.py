"""Trials: what a search knows already, so that an interrupted one goes on exactly as if it had not been interrupted.

A search is decided by its seed and by the times that it is told. So the trials that a log holds of the same seed are
not learnt at once: the search starts again, and each time that it proposes one of them, it is told the recorded time
instead of measuring. It has met them all where the interrupted search ended, and is in the same state. Trials of other
seeds were known from the start, and are now.
"""

from collections.abc import Callable, Iterable

from tvm_sparse.logs.record import TuningRecord, decisions_key
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.space import Decisions, Space

# A schedule's name and `decisions_key` of its decisions.
Key = tuple[str, str]
# A space and the decisions of one of its candidates; None: its defaults.
Proposal = tuple[Space, Decisions | None]


class Trials:
    """The trials of a search: those it has learnt, and those of an earlier run that it has not met again yet.

    * `records`: trials of the same weight and machine, in the order of the log.
    * `seed`: of this search.
    """

    def __init__(self, records: Iterable[TuningRecord], seed: int):
        self._known: dict[Key, TuningRecord] = {}
        self._pending: dict[Key, TuningRecord] = {}
        for record in records:
            (self._pending if record.seed == seed else self._known)[key_of(record)] = record
        # What this search measured itself, nobody had measured before it.
        for key in self._known.keys() & self._pending.keys():
            del self._known[key]

    def __len__(self) -> int:
        """Trials that count towards a budget: no compiler runs for a library's kernels, so they do not."""
        return sum(not family_of(schedule).is_library for schedule, _ in self._known)

    @property
    def count(self) -> int:
        """As the length, pending ones included."""
        return len(self) + sum(not family_of(schedule).is_library for schedule, _ in self._pending)

    @property
    def records(self) -> list[TuningRecord]:
        """Those learnt, in the order in which they were."""
        return list(self._known.values())

    @property
    def pending(self) -> list[TuningRecord]:
        """Those of an earlier run that are still to be met."""
        return list(self._pending.values())

    def add(self, record: TuningRecord) -> None:
        """Learn a new trial."""
        self._known[key_of(record)] = record

    def lookup(self, key: Key) -> TuningRecord | None:
        """What was learnt of a candidate."""
        return self._known.get(key)

    def resume(self, key: Key) -> bool:
        """Learn a candidate's trial of an earlier run, if there is one; whether the candidate has been measured."""
        if key in self._pending:
            self._known[key] = self._pending.pop(key)
        return key in self._known

    def give_up(self, of_schedule: Callable[[str], bool]) -> list[TuningRecord]:
        """Learn at once the pending trials whose schedule's name fulfils `of_schedule`, which are returned.

        This search will not meet them: it has other options, or a record of the earlier run was lost.
        """
        found = [record for record in self._pending.values() if of_schedule(record.schedule)]
        for record in found:
            self.resume(key_of(record))
        return found

    def forget(self, is_stale: Callable[[TuningRecord], bool]) -> None:
        """Drop trials, learnt or pending."""
        for trials in (self._known, self._pending):
            for key in [key for key, record in trials.items() if is_stale(record)]:
                del trials[key]


def key_of(record: TuningRecord) -> Key:
    """The candidate that a record is a trial of."""
    return record.schedule, decisions_key(record.chosen)


def key_of_proposal(space: Space, decisions: Decisions | None) -> Key:
    """The candidate that decisions of a space are."""
    return space.name, decisions_key(decisions)
