"""A tuning log as a page for people: what was decided for each layer, and what it gained.

A shared log has its page beside it, so that a change of the log shows in a review, packed or not.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tvm_sparse.logs.matching import machine
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog

COLUMNS = ("convolution", "density", "schedule", "decisions", "us", "baseline", "its us", "ratio")


def page_path(log: Path) -> Path:
    """Where the page of a log lies: ``table2.md`` beside ``table2.jsonl`` and ``table2.jsonl.xz``."""
    return log.with_name(f"{log.name.removesuffix('.xz').removesuffix('.jsonl')}.md")


def page(log: TuningLog) -> str:
    """The page of a log as Markdown: for each machine the verified records of sparse kernels, times in microseconds."""
    machines: dict[tuple[str, ...], list[TuningRecord]] = defaultdict(list)
    for record in log.records:
        machines[machine(record)].append(record)
    made = "Made by `tvm-sparse logs page`: sparse kernels, each beside its baseline; medians, in us, with warm code."
    lines = [f"# {log.path.name}", "", made, ""]
    for (kind, arch, threads, tvm), records in sorted(machines.items()):
        lines += [f"## {kind} {arch}, {threads} thread{'s' * (threads != '1')}, TVM {tvm}", "", *_table(records), ""]
    return "\n".join(lines)


def _table(records: Sequence[TuningRecord]) -> list[str]:
    rows = sorted(_row(record) for record in records if record.status == "ok" and not record.is_dense)
    failed = Counter(record.status for record in records if record.status != "ok")
    counts = ", ".join(f"{count} {status}" for status, count in sorted(failed.items()))
    more = [f"Not shown: {counts}."] if failed else []
    return ["| " + " | ".join(row) + " |" for row in (COLUMNS, ["---"] * len(COLUMNS), *rows)] + more


def _row(record: TuningRecord) -> tuple[str, ...]:
    decisions = ", ".join(f"{name} {_text(value)}" for name, value in record.decisions.items())
    baseline_us = record.dense_time_us
    return (
        record.spec.key,
        f"{record.pattern.density:.3g}",
        record.schedule,
        decisions if record.trace is None else "MetaSchedule's trace",
        f"{record.time_us:.4g}",
        record.baseline,
        "" if baseline_us is None else f"{baseline_us:.4g}",
        "" if record.speedup is None else f"{record.speedup:.2f}x",
    )


def _text(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
