"""How searches went, from tuning logs: best time after each trial, and seconds a layer."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from pathlib import Path

import table2
from table2_results import TuningCurve, rounded

from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.log import TuningLog
from tvm_sparse.records import TuningRecord


def curves(label: str, path: Path) -> list[TuningCurve]:
    """One curve for each weight of an operator of Table 2 that a log holds trials of.

    Trials are put in the order of their times; dense trials count as trials, but only sparse kernels as results.

    Raises
    ------
    LogError
        The log cannot be read, or holds no trial of Table 2.
    """
    groups: dict[tuple[ConvSpec, str], list[TuningRecord]] = defaultdict(list)
    for record in TuningLog(Path("/dev/null"), path).records:
        groups[record.spec, record.pattern.value_digest].append(record)
    found = []
    for (spec, _), records in groups.items():
        operator = next((each for each in table2.OPERATORS if table2.spec(each, spec.n) == spec), None)
        if operator is not None and not all(record.is_dense for record in records):
            found.append(_curve(label, operator, records))
    if not found:
        raise LogError(str(path), "holds no trial of an operator of Table 2")
    return found


def _curve(label: str, operator: int, records: list[TuningRecord]) -> TuningCurve:
    ordered = sorted(records, key=_moment)
    best: float | None = None
    best_us = []
    for record in ordered:
        if record.status == "ok" and not record.is_dense:
            best = record.time_us if best is None else min(best, record.time_us)
        best_us.append(best if best is None else rounded([best])[0])
    return TuningCurve(
        label=label,
        operator=operator,
        batch=ordered[0].spec.n,
        density=float(f"{ordered[0].pattern.density:.3g}"),
        best_us=tuple(best_us),
        seconds=(_moment(ordered[-1]) - _moment(ordered[0])).total_seconds(),
    )


def _moment(record: TuningRecord) -> datetime:
    return datetime.fromisoformat(record.timestamp.replace("Z", "+00:00"))
