"""``logs``: look into tuning logs, join them, and keep the best of them."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse import display
from tvm_sparse import log as tuning_log
from tvm_sparse.commands import common
from tvm_sparse.errors import UsageError
from tvm_sparse.log import TuningLog
from tvm_sparse.records import TuningRecord


def run(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    """The document of one action; ``merge`` and ``distill`` write ``--output``."""
    paths = [common.existing_log(path) for path in arguments.logs]
    writes = arguments.action in ("merge", "distill")
    if writes and arguments.output is None:
        raise UsageError(f"logs {arguments.action}", "no file to write was given", hint="add -o NEW.jsonl")
    if not writes and arguments.output is not None:
        raise UsageError(f"logs {arguments.action}", "writes no file", f"-o {arguments.output}")
    if arguments.action == "merge":
        log = tuning_log.merge(paths, arguments.output)
        return {"action": "merge", "output": str(arguments.output), **_counts(log)}
    log = TuningLog(os.devnull, *paths)
    if arguments.action == "distill":
        kept = log.distill(arguments.keep)
        tuning_log.write(arguments.output, kept)
        return {"action": "distill", "output": str(arguments.output), "kept": len(kept), **_counts(log)}
    if arguments.action == "best":
        return {"action": "best", "records": [_row(record) for record in log.best()]}
    return {"action": "stats", **_counts(log)}


def _counts(log: TuningLog) -> dict[str, Any]:
    lines = [
        {"file": str(line.path), "line": line.line_number, "reason": line.reason, "newer": line.newer}
        for line in log.rejected
    ]
    return {**log.stats(), "rejected_lines": lines}


def _row(record: TuningRecord) -> dict[str, Any]:
    return {
        "convolution": record.spec.key,
        "density": record.pattern.density,
        "schedule": record.schedule,
        "time_us": record.time_us,
        "dense_time_us": record.dense_time_us,
        "speedup": record.speedup,
        "machine": " ".join(str(record.fingerprint[key]) for key in ("kind", "arch", "threads")),
        "timestamp": record.timestamp,
    }


def show(document: dict[str, Any], console: Console) -> None:
    """A table of the best records, or counts."""
    if document["action"] == "best":
        columns = {
            "convolution": "convolution",
            "density": "density",
            "schedule": "schedule",
            "time_us": "us",
            "dense_time_us": "dense us",
            "speedup": "speed-up",
            "machine": "machine",
        }
        console.print(display.table("Best kernels", document["records"], columns))
        return
    for key in ("records", "weights", "convolutions"):
        console.print(Text(f"{key}: {document[key]}"))
    schedules: Counter[str] = Counter()
    for name, count in document["schedules"].items():
        schedules[name.partition(":")[0]] += count
    for key, counts in (("status", document["status"]), ("schedules", schedules), ("machines", document["machines"])):
        text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        console.print(Text(f"{key}: {text or 'none'}"))
    for line in document["rejected_lines"]:
        console.print(Text(f"{line['file']}, line {line['line']}: skipped, {line['reason']}"))
    if "output" in document:
        console.print(Text(f"written: {document['output']}, {document.get('kept', document['records'])} records"))
