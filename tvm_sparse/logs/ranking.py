"""Which record is the fastest, and whether a record's kernel is faster than its baseline.

Records with times taken with cold code, as in a model, come before those without. Of one clock, records that were timed
beside the same baseline are ordered by their ratio to it: machines are not equally fast in every run, but the baseline
was as slow as the kernel. Others can only be ordered by their times.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.quartiles import Quartiles, Verdict, time_verdict


def comparable_times_us(records: Sequence[TuningRecord]) -> list[float]:
    """A time for each record, microseconds, as if all with the same baseline and clock were of one run.

    The ratio to the baseline, times what the baseline takes in the median over those records.
    """
    of_baseline: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for record in records:
        if record.dense_time_us is not None:
            of_baseline[record.baseline, record.is_cold].append(record.dense_time_us)
    usual_us = {key: statistics.median(times) for key, times in of_baseline.items()}
    return [
        record.time_us
        if record.dense_time_us is None
        else record.time_us / record.dense_time_us * usual_us[record.baseline, record.is_cold]
        for record in records
    ]


def ranked(records: Iterable[TuningRecord]) -> list[TuningRecord]:
    """The fastest first; equals in the order of their text, so that the order of lines and files changes nothing."""
    found = list(records)
    times_us = comparable_times_us(found)
    ranks = [(not each.is_cold, time_us) for each, time_us in zip(found, times_us, strict=True)]
    count = Counter(ranks)
    # Texts are long: they are made for equals only.
    texts = [each.to_line() if count[rank] > 1 else "" for each, rank in zip(found, ranks, strict=True)]
    return [found[i] for i in sorted(range(len(found)), key=lambda i: (*ranks[i], texts[i]))]


def fastest(records: Iterable[TuningRecord]) -> TuningRecord:
    """The first of `ranked`, of one record or more."""
    return ranked(records)[0]


def fastest_unconverted(records: Iterable[TuningRecord]) -> TuningRecord | None:
    """The fastest between layers in the same layout, of those whose time without conversions was taken, if any."""
    timed = ranked(each for each in records if each.unconverted_time_us is not None)
    return min(timed, key=lambda each: (not each.is_cold, each.unconverted_time_us), default=None)


@dataclass(frozen=True)
class Comparison:
    """Times of a kernel and its baseline, microseconds, of one clock; `is_cold`: with cold code.

    `name` is the baseline's schedule; `others` are dense kernels of the same run that are slower or not allowed.
    """

    own: Quartiles
    baseline: Quartiles
    is_cold: bool
    name: str = ""
    others: Mapping[str, Quartiles] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """By quartiles: a median alone does not say whether another run would say the same."""
        return time_verdict(self.own, self.baseline)


def against_baseline(
    record: TuningRecord, dense: TuningRecord | None = None, is_allowed: Callable[[str], bool] | None = None
) -> Comparison | None:
    """A verified record beside the fastest dense kernel of its run whose schedule is allowed, by default any exact one.

    Where there is none, beside `dense`, of another run; None without either.
    """
    own, is_cold = record.counting_times_us, record.is_cold
    rivals = {record.baseline: record.counting_dense_times_us} if record.dense_times_us else {}
    rivals |= record.counting_library_times_us
    allowed = list(filter(is_allowed or _is_exact, rivals))
    if not allowed:
        if dense is None:
            return None
        is_cold = is_cold and dense.is_cold
        own, other = (each.counting_times_us if is_cold else each.times_us for each in (record, dense))
        rivals, allowed = {dense.schedule: other}, [dense.schedule]
    quartiles = {name: Quartiles.of(times) for name, times in rivals.items()}
    name = min(allowed, key=lambda name: quartiles[name].median)
    others = {other: quartiles[other] for other in quartiles if other != name}
    return Comparison(Quartiles.of(own), quartiles[name], is_cold, name, others)


def _is_exact(schedule: str) -> bool:
    from tvm_sparse.schedules.lookup import is_exact

    return is_exact(schedule)
