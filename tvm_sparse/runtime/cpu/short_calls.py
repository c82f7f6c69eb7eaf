"""ShortCalls: how many threads the calls of a model get that may take less time than to share them."""

import math

# Calls that take longer are worth their threads: to hand one over to a crew takes about 20 us.
SHORT_S = 2e-4
# Calls of either kind that are timed.
_TRIALS = 4


class ShortCalls:
    """Times the first calls of a model with one thread and with `threads` in turns, and keeps to what was faster.

    The very first call counts for nothing, as it finds all memory cold. If the second one takes longer than `SHORT_S`,
    or another one with all threads, none has fewer from then on. Any thread may ask and tell: what is lost then is a
    trial.
    """

    def __init__(self, threads: int):
        self._threads = threads
        self._left = 2 * _TRIALS + 1 if threads > 1 else 0
        self._best_s = {1: math.inf, threads: math.inf}

    @property
    def threads(self) -> int:
        """What the next call gets."""
        if self._left:
            return 1 if self._left % 2 and self._left <= 2 * _TRIALS else self._threads
        return min(self._best_s, key=lambda count: (self._best_s[count], -count))

    def took(self, threads: int, seconds: float) -> None:
        """A call with so many threads has taken so long."""
        if self._left and self._left <= 2 * _TRIALS:
            self._best_s[threads] = min(self._best_s[threads], seconds)
        self._left = max(0, self._left - 1)
        if threads == self._threads and SHORT_S < self._best_s[threads] < math.inf:
            self._left, self._best_s[1] = 0, math.inf
