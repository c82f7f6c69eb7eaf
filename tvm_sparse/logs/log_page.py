"""A tuning log as a page for people: what was decided for each layer, and what it gained."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.matching import machine
from tvm_sparse.logs.ranking import fastest
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog

COLUMNS = ("convolution", "density", "schedule", "decisions", "us", "baseline", "its us", "ratio")
WARM = "medians, in us, with warm code."
COLD = (
    "medians, in us: with warm code, and last with cold code, as in a model (docs/lab/clock.md), by which the ratio "
    "goes."
)
COLD_COLUMNS = ("cold us", "its cold us")


def page(log: TuningLog) -> str:
    """The page of a log as Markdown: for each machine and weight its fastest verified kernel, times in microseconds."""
    machines: dict[tuple[str, ...], list[TuningRecord]] = defaultdict(list)
    for record in log.records:
        machines[machine(record)].append(record)
    is_cold = any(record.is_cold for record in log.records)
    times = COLD if is_cold else WARM
    made = f"Made by `tvm-sparse logs page`: each weight's fastest sparse kernel, beside its baseline; {times}"
    lines = [f"# {log.path.name}", "", made, ""]
    for (kind, arch, threads, tvm), records in sorted(machines.items()):
        lines += [
            f"## {kind} {arch}, {threads} thread{'s' * (threads != '1')}, TVM {tvm}",
            "",
            *_table(records, is_cold),
            "",
        ]
    return "\n".join(lines)


def _table(records: Sequence[TuningRecord], is_cold: bool) -> list[str]:
    head = COLUMNS + COLD_COLUMNS * is_cold
    found = [record for record in records if record.status == "ok" and not record.is_dense]
    of_weights: dict[tuple[ConvSpec, str, str], list[TuningRecord]] = defaultdict(list)
    for record in found:
        of = record.family.name if record.family.computes_more else ""
        of_weights[record.spec, record.pattern.value_digest, of].append(record)
    rows = sorted(_row(best) + _cold_cells(best) * is_cold for best in map(fastest, of_weights.values()))
    failed = Counter(record.status for record in records if record.status != "ok")
    others = [f"{count} {status}" for status, count in sorted(failed.items())]
    if slower := len(found) - len(rows):
        others.insert(0, f"{slower} slower")
    more = [f"Not shown: {', '.join(others)}."] if others else []
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)] + more


def _row(record: TuningRecord) -> tuple[str, ...]:
    decisions = ", ".join(f"{name} {_text(value)}" for name, value in record.decisions.items())
    return (
        record.spec.key,
        f"{record.pattern.density:.3g}",
        record.schedule,
        decisions if record.trace is None else "MetaSchedule's trace",
        _median(record.times_us),
        record.baseline,
        _median(record.dense_times_us),
        "" if record.speedup is None else f"{record.speedup:.2f}x",
    )


def _cold_cells(record: TuningRecord) -> tuple[str, ...]:
    return _median(record.cold_times_us), _median(record.dense_cold_times_us)


def _median(times_us: Sequence[float] | None) -> str:
    return f"{statistics.median(times_us):.4g}" if times_us else ""


def _text(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
