"""Random search over several schedule spaces: the baseline that guided search has to beat at equal trials.

MetaSchedule's ``ReplayTrace`` draws: it replays a space's trace with its decisions sampled again, and drops what the
space's postprocessors refuse, as the guided search does. Like `evolutionary_search`, nothing here measures or writes.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_sparse.autotune.search.metaschedule_context import tune_context
from tvm_sparse.autotune.search.trial_history import Key, Proposal, key_of_proposal
from tvm_sparse.scheduling.space import Decisions, Space

# Draws in a row, refused or repeated, after which nothing new is expected of a space.
MAX_DRAWS = 500


class RandomSearch:
    """Distinct candidates of `spaces` in random order; the times of earlier ones change nothing.

    Every draw goes to one of the spaces that are not exhausted, all equally likely, and in it to any of its valid
    candidates that was not drawn yet: all equally likely where decisions are one of several, as likely as
    TVM samples its tiles where the space is generated. The same `seed` gives the same sequence.
    """

    def __init__(self, spaces: Sequence[Space], target: Target, seed: int):
        self._random = random.Random(seed)
        self._drawn: set[Key] = set()
        # Why draws were rejected before they cost a trial, and how many.
        self.refused: Counter[str] = Counter()
        self._sources: list[tuple[Space, Iterator[Decisions | None]]] = []
        for index, each in enumerate(spaces):
            self._sources.append((each, self._replays(each, target, seed + index)))

    def _replays(self, each: Space, target: Target, seed: int) -> Iterator[Decisions | None]:
        """What MetaSchedule draws; None for each that is refused."""
        # One replay a proposal, so that refused and repeated draws are counted together.
        strategy = ms.search_strategy.ReplayTrace(max_fail_count=1)
        context = tune_context(each, target, strategy, seed, self.refused)
        # It counts trials that it is told the results of, which it never is.
        context.pre_tuning(max_trials=1, num_trials_per_iter=1)
        while True:
            (candidate,) = context.generate_measure_candidates() or [None]
            yield None if candidate is None else each.decisions_of(candidate.sch)

    def propose(self, count: int) -> list[Proposal]:
        """The next `count` candidates, each a space and its decisions; fewer only where the spaces are exhausted."""
        found: list[Proposal] = []
        while len(found) < count and self._sources:
            source = self._random.choice(self._sources)
            each, draws = source
            decisions = self._draw(each, draws)
            if decisions is None:
                self._sources.remove(source)
            else:
                found.append((each, decisions))
        return found

    def _draw(self, each: Space, draws: Iterator[Decisions | None]) -> Decisions | None:
        """Decisions that were not drawn before, or None."""
        for decisions in islice(draws, MAX_DRAWS):
            if decisions is not None and (key := key_of_proposal(each, decisions)) not in self._drawn:
                self._drawn.add(key)
                return decisions
        return None
