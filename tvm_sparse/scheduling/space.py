"""What every schedule space is: a dense PrimFunc and a function that schedules it with sampled decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule


class NotApplicable(Exception):
    """Why a schedule does not serve a convolution, as a sentence."""


def no_constants(_weight: np.ndarray) -> tuple[np.ndarray, ...]:
    """A folded kernel takes no arrays made from the weight."""
    return ()


def weight_itself(weight: np.ndarray) -> tuple[np.ndarray, ...]:
    """A dense kernel takes the weight (K, C / groups, R, S)."""
    return (weight,)


@dataclass(frozen=True)
class Generated:
    """A space that MetaSchedule generates.

    `generator` makes its rules around the given postprocessors; `finish` is applied to a schedule after its trace.
    """

    generator: Callable[[list], Any]
    finish: Callable[[Schedule], None]


@dataclass(frozen=True)
class Space:
    """One search space for one convolution.

    Parameters
    ----------
    schedule, variant
        Name of the schedule and of the layout or structure within it that the search does not change.
    func
        Unscheduled function with arguments x, then the weight or the arrays of `constants`, [bias], [residual], y.
    apply
        Schedules `func` in a straight line; decisions are sampled, with good ones given as defaults. None: the space is
        `generated`.
    fold
        Whether the weight, argument 1, is folded into the code afterwards.
    constants
        The arrays that the kernel takes in the weight's place.
    generated
        How MetaSchedule generates the space, where `apply` is None.
    refuse
        Why a schedule is not worth a trial, judged before it is built, or ""; None: all are.
    features
        What the cost model is told of a schedule; None: TVM's features of the loop nest, which know nothing of folding.
    estimate_us, estimate
        Estimated time of the default decisions, and of a schedule; None where nothing estimates it.
    counts
        What the estimate is made from, of a schedule; None where nothing estimates it.
    others
        Like `apply`, with other defaults that a search should try first.
    """

    schedule: str
    variant: str
    func: tirx.PrimFunc
    apply: Callable[[Schedule], None] | None
    fold: bool = True
    constants: Callable[[np.ndarray], tuple[np.ndarray, ...]] = no_constants
    generated: Generated | None = None
    refuse: Callable[[Schedule], str] | None = None
    features: Callable[[Schedule], Sequence[float]] | None = None
    estimate_us: float | None = None
    estimate: Callable[[Schedule], float] | None = None
    counts: Callable[[Schedule], Any] | None = None
    others: tuple[Callable[[Schedule], None], ...] = ()

    @property
    def name(self) -> str:
        """``schedule`` or ``schedule:variant``."""
        return f"{self.schedule}:{self.variant}" if self.variant else self.schedule

    def scheduled(self, apply: Callable[[Schedule], None]) -> Schedule:
        """`func` as `apply`, or one of `others`, schedules it."""
        schedule = Schedule(self.func, debug_mask="none")
        apply(schedule)
        return schedule

    def is_worth(self, schedule: Schedule) -> bool:
        """Whether `refuse` says nothing against a schedule."""
        return self.refuse is None or not self.refuse(schedule)


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors of `number`, ascending, up to `most`."""
    return [d for d in range(1, min(number, most or number) + 1) if number % d == 0]


def sample(sch: Schedule, candidates: Sequence[int], default: int) -> object:
    """Sample one of `candidates` with equal probability; without a search the decision is `default`."""
    values = sorted(set(candidates))
    decision = values.index(default)
    return sch.sample_categorical(values, [1.0 / len(values)] * len(values), decision=decision)


def decided(sch: Schedule) -> list[int]:
    """The values that `sample` chose, in the order of its calls."""
    sampled = (each.outputs[0] for each in sch.trace.insts if each.kind.name == "SampleCategorical")
    return [int(sch.get(each)) for each in sampled]


def nearest(candidates: Sequence[int], wish: float) -> int:
    """The candidate nearest to `wish`, the larger of two."""
    return min(candidates, key=lambda candidate: (abs(candidate - wish), -candidate))
