"""How searches went, from tuning logs: best time after each trial, and which is ahead at equal trials."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, groupby
from pathlib import Path

from benchmarks import operators
from benchmarks.report.cells import NOTHING, Table
from benchmarks.results import Document, TuningCurve, rounded
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog

# Trials after which searches are compared.
AFTER = (1, 2, 4, 8, 16, 32, 64)


def curves(label: str, path: Path) -> list[TuningCurve]:
    """One curve for each weight of an operator of Table 2 that a log holds trials of, in the order of their times.

    Trials of dense kernels are left out: they are the baseline's. A log is of one search: a record does not say which
    search made it, and what a log knows is not tried again.

    Raises
    ------
    LogError
        The log cannot be read, or holds no trial of Table 2.
    """
    groups: dict[tuple[ConvSpec, str], list[TuningRecord]] = defaultdict(list)
    for record in TuningLog(NO_FILE, path).records:
        if not record.is_dense:
            groups[record.spec, record.pattern.value_digest].append(record)
    found = []
    for (spec, _), records in groups.items():
        operator = next((each for each in operators.OPERATORS if operators.spec(each, spec.n) == spec), None)
        if operator is not None:
            found.append(_curve(label, operator, records))
    if not found:
        raise LogError(str(path), "holds no trial of an operator of Table 2")
    return found


def _curve(label: str, operator: int, records: list[TuningRecord]) -> TuningCurve:
    ordered = sorted(records, key=_moment)
    best_us = accumulate((each.time_us if each.status == "ok" else math.inf for each in ordered), min)
    return TuningCurve(
        label=label,
        operator=operator,
        batch=ordered[0].spec.n,
        density=float(f"{ordered[0].pattern.density:.3g}"),
        best_us=tuple(None if math.isinf(each) else rounded([each])[0] for each in best_us),
        seconds=(_moment(ordered[-1]) - _moment(ordered[0])).total_seconds(),
    )


def _moment(record: TuningRecord) -> datetime:
    return datetime.fromisoformat(record.timestamp.replace("Z", "+00:00"))


def layers(found: Sequence[TuningCurve]) -> list[list[TuningCurve]]:
    """Curves layer by layer, by label in each."""
    ordered = sorted(found, key=lambda each: (each.operator, -each.batch, each.density, each.label))
    return [list(each) for _, each in groupby(ordered, key=lambda each: (each.operator, each.batch, each.density))]


def equal_trials(document: Document) -> Table:
    """Searches against each other, over the layers in which all of them have made so many trials."""
    note = (
        "Layers in which a search is ahead of all others after so many trials, of those in which all have made them, "
        "and the geometric mean of its time over the best that is known where all have a kernel."
    )
    found = layers(document.tuning)
    labels = sorted({curve.label for each in found for curve in each if len(curve.best_us) > 1})
    rows = []
    for trials in AFTER if len(labels) > 1 else ():
        pairs = [[_after(each, label, trials) for label in labels] for each in found]
        full = [[one for one in each if one is not None] for each in pairs if None not in each]
        working = [each for each in full if math.inf not in each]
        cells: list[str] = []
        for i in range(len(labels)):
            cells.append(str(sum(each[i] < min(each[:i] + each[i + 1 :]) for each in full)))
            cells.append(f"{statistics.geometric_mean(each[i] for each in working):.2f}" if working else NOTHING)
        if full:
            rows.append((str(trials), str(len(full)), *cells))
    header = ("trials", "layers", *(text for label in labels for text in (f"{label} ahead", "over best known")))
    return Table("At equal trials", note, header, tuple(rows))


def _after(layer: Sequence[TuningCurve], label: str, trials: int) -> float | None:
    """Median of a layer's searches of one label, as their best time after so many trials over the best of all searches.

    Infinite before the first success; None where none has made so many trials.
    """
    best = min((time_us for each in layer for time_us in each.best_us if time_us is not None), default=math.inf)
    times = [each.best_us[trials - 1] for each in layer if each.label == label and len(each.best_us) >= trials]
    return statistics.median([math.inf if each is None else each / best for each in times]) if times else None
