"""When a search has had enough: its last candidates gained nothing worth having."""

import math

# A candidate that beats the best before it by less than this share has gained nothing.
GAIN = 0.02


class Patience:
    """Counts candidates in a row that gained nothing; `trials` is how many of them end a search, None: never.

    A candidate is judged by its time and by its ratio to the dense kernel's: the machine may have been slow for one of
    the two, and what looks like a gain in either is one. Before the first that runs nothing is counted.
    """

    def __init__(self, trials: int | None):
        self._limit = math.inf if trials is None else trials
        self._best_us = self._best_cost_us = math.inf
        self._in_vain = 0

    def learn(self, time_us: float, cost_us: float) -> None:
        """A candidate was measured: its time, and its time as the search counts it; infinite where it failed."""
        gained = time_us < self._best_us * (1 - GAIN) or cost_us < self._best_cost_us * (1 - GAIN)
        if gained:
            # Small gains add up: these are compared with what they were before the first of them.
            self._best_us, self._best_cost_us = min(time_us, self._best_us), min(cost_us, self._best_cost_us)
        self._in_vain = 0 if gained or math.isinf(self._best_us) else self._in_vain + 1

    @property
    def is_over(self) -> bool:
        """Whether so many candidates gained nothing."""
        return self._in_vain >= self._limit
