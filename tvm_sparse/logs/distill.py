"""The records of a log that are worth keeping: the fastest of each weight and machine."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tvm_sparse.logs.matching import machine
from tvm_sparse.logs.ranking import fastest_unconverted, ranked
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.scheduling.family import TF32_VARIANT, schedule_of


def best(records: Iterable[TuningRecord]) -> list[TuningRecord]:
    """The fastest verified record in float32, dense ones included, of each weight on each machine."""
    found = (record for record in records if not record.is_tf32 and not record.family.computes_more)
    return _fastest(found, 1, lambda record: "")


def distill(records: Iterable[TuningRecord], keep: int = 1) -> list[TuningRecord]:
    """The `keep` fastest verified records of each weight, schedule and machine; failures are dropped.

    Those in TF32 are a schedule of their own, and so is each layout of a library's: the faster one for a layer may
    not be that for its model.
    """

    def kind(record: TuningRecord) -> str:
        name = schedule_of(record.schedule) + TF32_VARIANT * record.is_tf32
        return name + str(record.decisions.get("layout")) if record.family.is_library else name

    return _fastest(records, keep, kind)


def _fastest(records: Iterable[TuningRecord], keep: int, kind: Callable[[TuningRecord], str]) -> list[TuningRecord]:
    """The `keep` fastest verified records of each weight, machine and `kind`."""
    groups: dict[Any, list[TuningRecord]] = defaultdict(list)
    for record in records:
        if record.status == "ok":
            groups[record.spec, record.pattern.value_digest, machine(record), kind(record)].append(record)
    return [record for _, group in sorted(groups.items()) for record in _first(group, keep)]


def _first(records: list[TuningRecord], keep: int) -> list[TuningRecord]:
    """The `keep` fastest, and what is faster without conversions than these."""
    found, between = ranked(records)[:keep], fastest_unconverted(records)
    return found if between is None or between in found else [*found, between]
