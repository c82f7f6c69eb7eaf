"""Times calls whose code is in no instruction cache: ahead of each runs a kernel that displaces all code from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu.cuda_graph_clock import Call, CpuClock, Replay

# Timed calls of a replay at most: an evictor takes longer than most of them.
MAX_CALLS = 32
# A shorter time is noise, and ratios need one above 0.
LEAST_US = 0.01


@dataclass(frozen=True)
class ColdCodeReplay:
    """Replays of calls with an evictor ahead of each, `number` of them; of as many evictors; of one of each."""

    calls: Replay
    evictors: Replay
    first: Replay
    number: int


class ColdCodeClock:
    """Times replays on `clock`, with `evict` as the evictor: its argument counts up."""

    def __init__(self, clock: CpuClock, evict: Callable[[int], None]):
        self._clock, self._evict = clock, evict
        self._evictors: dict[int, Replay] = {}

    def capture(self, calls: Sequence[Call]) -> ColdCodeReplay:
        """Calls to be timed; the first is left out where there are others, as its data are in the L2 cache by then."""
        timed = calls[1 : MAX_CALLS + 1] or calls
        number = len(timed)
        evictors = [partial(self._evict, turn) for turn in range(number)]
        if number not in self._evictors:
            self._evictors[number] = self._clock.capture(evictors)
        pairs = [each for pair in zip(evictors, timed, strict=True) for each in pair]
        first = self._clock.capture([partial(self._evict, 1), calls[0]])
        return ColdCodeReplay(self._clock.capture(pairs), self._evictors[number], first, number)

    def round_us(self, replays: Sequence[ColdCodeReplay]) -> list[float]:
        """Time of all timed calls of each replay, microseconds: that with evictors, less that of evictors alone.

        The L2 cache has none of the calls' data but has the code, as in a model of which it holds the weights: data are
        displaced first, then the evictor and a call run once. Both times are taken one right after the other.
        """
        times_us = []
        for each in replays:
            self._clock.displace_data()
            each.first()
            evictors_us, both_us = self._clock.times_us([each.evictors, each.calls])
            times_us.append(max(both_us - evictors_us, LEAST_US))
        return times_us
