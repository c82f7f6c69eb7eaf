"""Quartiles: the middle of some times, and how far they spread; they decide what is faster."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["faster", "slower", "undecided"]


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quartiles":
        """Of one or more `values`."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def to_json(self) -> dict[str, float]:
        """As JSON values."""
        return {"median": self.median, "q1": self.low, "q3": self.high}

    def times(self, factor: float) -> "Quartiles":
        """Of values that are so many times as large."""
        return Quartiles(self.median * factor, self.low * factor, self.high * factor)


def time_verdict(times_us: Quartiles, baseline_us: Quartiles) -> Verdict:
    """Whether a kernel is faster than its baseline: three quarters of its times are below three of the baseline's."""
    if times_us.high < baseline_us.low:
        return "faster"
    return "slower" if times_us.low > baseline_us.high else "undecided"
