"""Phases of a layer's tuning: which candidates of some spaces are measured, in which order, within a budget.

A batch that an earlier run measured costs no trial.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tvm_sparse.autotune.search.evolutionary_search import SpaceSearch
from tvm_sparse.autotune.search.patience import Patience
from tvm_sparse.autotune.search.trial_history import Key, Proposal, key_of_proposal
from tvm_sparse.autotune.search.trial_runner import TrialRunner
from tvm_sparse.errors import BuildError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.safe_replay import SafeReplay
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.space import Decisions, Space

# How many times as long as the best start one of another schedule may be estimated to take to be tried with the first:
# where no compiler runs for it more, as it costs a second, and a folded kernel may be too large to be built in time.
UNLIKELY, UNLIKELY_BUILT = 1.5, 4.0


class Phase(ABC):
    """The search over some spaces of a layer with a budget of trials."""

    def __init__(self, runner: TrialRunner, spaces: Sequence[Space], budget: int):
        self.runner = runner
        self.spaces = list(filter(runner.searches, spaces))
        self.end = len(runner.known) + budget
        is_dense = all(family_of(each.schedule).is_dense for each in self.spaces)
        self._patience = Patience(None if is_dense else runner.options.patience)
        self._met: set[Key] = set()

    @abstractmethod
    def run(self) -> Iterator[TuningRecord]:
        """Measure candidates until trials, time or spaces come to their end."""

    @property
    def left(self) -> int:
        """Trials that may still be made, those of an earlier run that are met again included."""
        return self.end - len(self.runner.known)

    def _goes_on(self) -> bool:
        """Whether there are trials, time and patience for another batch.

        Meeting an earlier run's trials again takes time, but is not counted: else reruns of a long search would be over
        before they measure anything.
        """
        names = {each.name for each in self.spaces}
        if any(record.schedule in names for record in self.runner.known.pending):
            self.runner.start_clock()
        if self.left <= 0:
            return False
        self.runner.is_exhausted = self._patience.is_over
        return not self.runner.is_exhausted and self.runner.has_time()

    def _measure(self, proposals: Sequence[Proposal], searches: Sequence[SpaceSearch] = ()) -> Iterator[TuningRecord]:
        """Measure what is new of as many proposals as the budget allows.

        Where an earlier run did not measure one of them, it went another way: its other trials are learnt now.
        """
        known, proposals = self.runner.known, proposals[: max(self.left, 0)]
        fresh = [each for each in proposals if not known.resume(key_of_proposal(*each))]
        if fresh:
            lost = known.give_up(lambda name: name in {each.name for each in self.spaces})
            for search in searches:
                search.remember(lost, self.runner.cost_us)
        yield from self.runner.measure(fresh[: max(self.left, 0)])
        for key in dict.fromkeys(key_of_proposal(*each) for each in proposals):
            # A search proposes again what it knows. What an earlier run measured counts as it did then.
            if key not in self._met and (record := known.lookup(key)):
                self._met.add(key)
                self._patience.learn(record.time_us, self.runner.cost_us(record))

    def _fitting(self, records: Iterable[TuningRecord]) -> Iterator[Proposal]:
        """Candidates that decide as records of another weight or convolution do, without those that do not fit."""
        runner, spaces = self.runner, {each.name: each for each in self.spaces}
        with SafeReplay() as replay:
            for record in records:
                if each := spaces.get(record.schedule):
                    try:
                        schedule = replay.scheduled(each, runner.spec, runner.pattern, runner.target, record.chosen)
                    except BuildError:
                        continue
                    if not each.obstacle_of(schedule):
                        yield each, record.chosen


class LibraryPhase(Phase):
    """All that is worth measuring of a library's kernels.

    It counts towards no budget of trials or seconds: no compiler runs for them, and without it there is no baseline.
    """

    def __init__(self, runner: TrialRunner, spaces: Sequence[Space]):
        super().__init__(runner, spaces, 0)

    def run(self) -> Iterator[TuningRecord]:
        yield from self._fresh([(each, start) for each in self.spaces for start in each.starts()])
        more = [(each, start) for each in self.spaces for start in each.more_starts(partial(self._time_us, each))]
        yield from self._fresh(more)

    def _time_us(self, space: Space, decisions: Decisions) -> float | None:
        """Of a trial, as between layers like it where that was timed: conversions hide what its arithmetic takes."""
        record = self.runner.known.lookup(key_of_proposal(space, decisions))
        unconverted_us = record.unconverted_time_us if record is not None else None
        return self.runner.time_us(space, decisions) if unconverted_us is None else unconverted_us

    def _fresh(self, pairs: Sequence[Proposal]) -> Iterator[TuningRecord]:
        fresh = [pair for pair in pairs if not self.runner.known.resume(key_of_proposal(*pair))]
        if fresh:
            yield from self.runner.measure(fresh)
            self.runner.start_clock()


class GuidedPhase(Phase):
    """Defaults and other starts of all spaces, then rounds of search over the best ones."""

    def run(self) -> Iterator[TuningRecord]:
        if self.left <= 0 or not self.spaces:
            return
        searches = self._searches()
        pairs = [*self._fitting(self.runner.starts), *promising_first([search.space for search in searches])]
        for first in range(0, len(pairs), self.runner.batch):
            if not self._goes_on():
                return
            yield from self._measure(pairs[first : first + self.runner.batch])
        for search in searches:
            # Its default, just measured, and an earlier run's trials.
            search.remember(self.runner.known.records, self.runner.cost_us)
        turn = 0
        while searches and self._goes_on():
            ranked = sorted(searches, key=lambda search: self._best_us(search.space))
            # Two turns of three to the best space, one to the next: the second best default may hold the best kernel.
            search = ranked[1 if turn % 3 == 2 and len(ranked) > 1 else 0]
            turn += 1
            proposed = search.propose()
            if proposed is None:
                searches.remove(search)
                continue
            yield from self._measure([(search.space, decisions) for decisions in proposed], searches)
            search.tell([self.runner.time_us(search.space, decisions) for decisions in proposed])

    def _searches(self) -> list[SpaceSearch]:
        runner = self.runner
        options = runner.options
        # A space may be asked for all trials that are left, and proposes known candidates again.
        most = options.trials * 2 + len(runner.known)
        return [
            SpaceSearch(each, runner.target, runner.model_of(each), options.seed + 1 + index, most, runner.batch)
            for index, each in enumerate(self.spaces)
        ]

    def _best_us(self, each: Space) -> float:
        """Best time in a space so far; 0 before its first trial, so that every space gets a turn."""
        records = (record for record in self.runner.known.records if record.schedule == each.name)
        times = map(self.runner.cost_us, records)
        return min(times, default=0.0)


def promising_first(spaces: Sequence[Space]) -> list[Proposal]:
    """Starts of all spaces: defaults before second starts; where times are estimated, the best estimates before others.

    A short search has tried each schedule, so the best start of each comes first, unless it is estimated to take far
    longer than another's.
    """
    columns = (
        [(each, *start) for start in zip(each.starts(), each.starts_us, strict=True)] for each in _by_rank(spaces)
    )
    starts = [start for rank in itertools.zip_longest(*columns) for start in rank if start is not None]
    best_us = min((us for *_, us in starts if us is not None), default=None)
    if best_us is not None:
        # Nothing estimates the time of schedules that others have outdone.
        starts.sort(key=lambda start: math.inf if start[-1] is None else start[-1])
        best: dict[str, Any] = {}
        for start in starts:
            best.setdefault(start[0].schedule, start)
        limits_us = {True: UNLIKELY * best_us, False: UNLIKELY_BUILT * best_us}
        leads = [each for each in best.values() if each[-1] is not None and each[-1] <= limits_us[each[0].fold]]
        starts = leads + [each for each in starts if each not in leads]
    return [(space, decisions) for space, decisions, _ in starts]


def _by_rank(spaces: Sequence[Space]) -> list[Space]:
    """The most promising space of each schedule first, then the second ones."""
    seen: Counter[str] = Counter()
    ranks = []
    for each in spaces:
        ranks.append(seen[each.schedule])
        seen[each.schedule] += 1
    return [each for _, each in sorted(zip(ranks, spaces, strict=True), key=lambda pair: pair[0])]
