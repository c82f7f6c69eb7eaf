"""Random search over several schedule spaces: the baseline that guided search has to beat at equal trials.

MetaSchedule's ``ReplayTrace`` draws: it replays a space's trace with its decisions sampled again, and drops what the
space's postprocessors refuse, as the guided search does. Like `search`, nothing here measures or writes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_sparse.autotune.metaschedule_context import tune_context
from tvm_sparse.autotune.trial_history import Key, key_of_trace
from tvm_sparse.scheduling.space import Space
from tvm_sparse.scheduling.trace import trace_to_json

# Draws in a row, refused or repeated, after which nothing new is expected of a space.
MAX_DRAWS = 500


class RandomSearch:
    """Distinct candidates of `spaces` in random order; the times of earlier ones change nothing.

    Every draw goes to one of the spaces that are not exhausted, all equally likely, and in it to any of its valid
    candidates that was not drawn yet: all equally likely where decisions are `schedules.base.sample`'s, as likely as
    TVM samples its tiles where the space is generated. The same `seed` gives the same sequence.
    """

    def __init__(self, spaces: Sequence[Space], target: Target, seed: int):
        self._random = random.Random(seed)
        self._drawn: set[Key] = set()
        # Why draws were rejected before they cost a trial, and how many.
        self.refused: Counter[str] = Counter()
        self._sources: list[tuple[Space, ms.TuneContext]] = []
        for index, each in enumerate(spaces):
            # One replay a proposal, so that refused and repeated draws are counted together.
            strategy = ms.search_strategy.ReplayTrace(max_fail_count=1)
            context = tune_context(each, target, strategy, seed + index, self.refused)
            # It counts trials that it is told the results of, which it never is.
            context.pre_tuning(max_trials=1, num_trials_per_iter=1)
            self._sources.append((each, context))

    def propose(self, count: int) -> list[tuple[Space, Any]]:
        """The next `count` candidates, each a space and a JSON trace; fewer only where the spaces are exhausted."""
        found: list[tuple[Space, Any]] = []
        while len(found) < count and self._sources:
            source = self._random.choice(self._sources)
            each, context = source
            trace = self._draw(each, context)
            if trace is None:
                self._sources.remove(source)
            else:
                found.append((each, trace))
        return found

    def _draw(self, each: Space, context: ms.TuneContext) -> Any:
        """A trace that was not drawn before, or None."""
        for _ in range(MAX_DRAWS):
            for candidate in context.generate_measure_candidates():
                trace = trace_to_json(candidate.sch.trace)
                key = key_of_trace(each, trace)
                if key not in self._drawn:
                    self._drawn.add(key)
                    return trace
        return None
