"""Which of a convolution's records a weight is served by: its own, or those of a weight with zeros like its."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.logs.matching import distance
from tvm_sparse.logs.ranking import comparable_times_us, fastest, ranked
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.scheduling.family import schedule_of

# Records of a schedule at most whose decisions are checked for another density: each takes some ten milliseconds.
TRIED = 2
# What weights without zeros are called.
DENSE = "dense"
# Logarithm of the ratio of two densities that count as the same, and how many times as fast a kernel for another weight
# of that density must be.
SAME_DENSITY, CLEARLY = math.log(1.01), 1.1


@dataclass(frozen=True)
class Match:
    """A record to build a kernel from; `how` says what it shares with the weight, `note` is that as a sentence."""

    record: TuningRecord
    how: Literal["values", "mask", "density"]
    note: str


def best_match(
    usable: Sequence[TuningRecord],
    pattern: SparsityPattern,
    growth: Callable[[TuningRecord], float] | None = None,
) -> Match | None:
    """The best of verified records for a weight with `pattern`; None where none may serve it.

    First those with the same values, then those with the same zeros, then those with the same structure and the nearest
    density; among equals the fastest. `growth` says how many times as long the kernel of a record for another density
    takes, and is infinite where it does not fit: of each schedule the fastest record counts, or else the next. Kernels
    that a compiler makes for each weight must be faster than others by their `build_price`.

    A weight may have been tried in one schedule only, and others like it in more: a record of the same density whose
    schedule was not tried for the weight comes before its own where it is faster by `CLEARLY`. So does one of a weight
    without zeros whose kernel takes any weight.
    """
    found = _best_alike(usable, pattern, growth)
    if found is None or pattern.structure == DENSE:
        return found
    dense = [each for each in usable if each.pattern.structure == DENSE and each.family.takes_any_zeros]
    faster = _faster_than(found.record, dense)
    return Match(fastest(faster), "density", "tuned for a weight without zeros") if faster else found


def _best_alike(
    usable: Sequence[TuningRecord], pattern: SparsityPattern, growth: Callable[[TuningRecord], float] | None
) -> Match | None:
    """The best of those for weights of the same structure."""
    alike = [record for record in usable if record.pattern.structure == pattern.structure]
    if own := _own(usable, pattern):
        near = [record for record in alike if distance(record.pattern, pattern) <= SAME_DENSITY]
        tried = {schedule_of(record.schedule) for record in near if _match(record, pattern).how == own.how}
        others = [record for record in near if schedule_of(record.schedule) not in tried]
        found = _fastest_grown(_faster_than(own.record, others), growth or (lambda _: 1.0))
        return _match(found, pattern) if found else own
    for least in sorted({distance(record.pattern, pattern) for record in alike}):
        near = [record for record in alike if distance(record.pattern, pattern) == least]
        if nearest := fastest(near) if growth is None else _fastest_grown(near, growth):
            return _match(nearest, pattern)
    return None


def _own(usable: Sequence[TuningRecord], pattern: SparsityPattern) -> Match | None:
    same_values = [record for record in usable if record.pattern.value_digest == pattern.value_digest]
    same = same_values or [record for record in usable if record.pattern.mask_digest == pattern.mask_digest]
    return _match(fastest(same), pattern) if same else None


def _match(record: TuningRecord, pattern: SparsityPattern) -> Match:
    if record.pattern.value_digest == pattern.value_digest:
        return Match(record, "values", "tuned for these weights")
    if record.pattern.mask_digest == pattern.mask_digest:
        return Match(record, "mask", "tuned for other values with the same zeros")
    return Match(record, "density", f"transferred from density {record.pattern.density:.3g}")


def _faster_than(own: TuningRecord, records: Sequence[TuningRecord]) -> list[TuningRecord]:
    """Of records for other weights those that took clearly less time, measured as the weight's own was."""
    others = [record for record in records if record.is_cold == own.is_cold]
    own_us, *times_us = comparable_times_us([own, *others])
    return [each for each, us in zip(others, times_us, strict=True) if us < own_us / CLEARLY]


def _fastest_grown(records: Sequence[TuningRecord], growth: Callable[[TuningRecord], float]) -> TuningRecord | None:
    """Which record's kernel is fastest when it takes so much longer; None where none fits."""
    of_schedules: dict[str, list[TuningRecord]] = defaultdict(list)
    for record in ranked(records):
        of_schedules[schedule_of(record.schedule)].append(record)
    fitting: list[tuple[TuningRecord, float]] = []
    for each in of_schedules.values():
        grown = ((record, growth(record)) for record in each[:TRIED])
        fitting += islice((pair for pair in grown if math.isfinite(pair[1])), 1)
    if not fitting:
        return None
    found, times = zip(*fitting, strict=True)
    costs = [
        us * each * record.family.build_price
        for record, us, each in zip(found, comparable_times_us(found), times, strict=True)
    ]
    order = [(not record.is_cold, cost) for record, cost in zip(found, costs, strict=True)]
    best: TuningRecord = found[order.index(min(order))]
    return best
