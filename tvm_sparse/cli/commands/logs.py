"""``logs``: look into tuning logs, join them, keep the best of them, verify them again."""

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse.autotune.progress.task_progress import Causes
from tvm_sparse.display import tables
from tvm_sparse.errors import LogError, UsageError, VerificationError, typed
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs import distill, merge, publishing, validate
from tvm_sparse.logs.fetching import is_url, shown
from tvm_sparse.logs.known_logs import DEFAULT_LOG, logs_folder
from tvm_sparse.logs.log_file import Rejected
from tvm_sparse.logs.log_page import page
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog
from tvm_sparse.scheduling.family import schedule_of


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document of one action; some write ``--output``."""
    writes = arguments.action in ("merge", "distill")
    if writes and arguments.output is None:
        raise UsageError(f"logs {arguments.action}", "no file to write was given", hint="add -o NEW")
    if not writes and arguments.output is not None:
        raise UsageError(f"logs {arguments.action}", "writes no file", f"-o {arguments.output}")
    if url := next(filter(is_url, arguments.logs), None):
        hint = "publish to a folder, and copy that to the server; name URLs with --tuning-records"
        raise UsageError(f"logs {arguments.action}", "knows no URLs", shown(url), "paths of this machine", hint)
    document = _ACTIONS[arguments.action](arguments, console)
    output = {"output": str(arguments.output)} if writes else {}
    return {"action": arguments.action, **output, **document}


def _existing(path: Path) -> Path:
    if not path.is_file():
        hint = f"check the path, or make a log with: {typed('tune MODEL')}"
        raise LogError(str(path), "no such file", hint=hint)
    return path


def _read(arguments: argparse.Namespace) -> TuningLog:
    # The first file of a log may be missing; none that was asked for may.
    return TuningLog(NO_FILE, *map(_existing, arguments.logs))


def _stats(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    log = _read(arguments)
    return {**_counts(log), "causes": Causes(log.records).to_json()}


def _best(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    return {"records": [_row(record) for record in distill.best(_read(arguments).records)]}


def _page(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    logs = [TuningLog(_existing(path)) for path in arguments.logs]
    return {"pages": [{"log": str(log.path), "text": page(log)} for log in logs]}


def _merge(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    return _counts(merge.merge([_existing(path) for path in arguments.logs], arguments.output))


def _distill(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    log = _read(arguments)
    log.checked()
    kept = distill.distill(log.records, arguments.keep)
    merge.write(arguments.output, kept)
    return {"kept": len(kept), **_counts(log)}


def _publish(arguments: argparse.Namespace, _console: Console) -> dict[str, Any]:
    folder, *paths = arguments.logs
    own = [path for path in (DEFAULT_LOG, *sorted(logs_folder().glob("*.jsonl"))) if path.is_file()]
    log = TuningLog(NO_FILE, *(map(_existing, paths) if paths else own))
    log.checked()
    return {"folder": str(folder), "published": publishing.publish(folder, log.records, arguments.keep), **_counts(log)}


def _validate(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    log = _read(arguments)
    chosen = [record for record in log.records if record.status == "ok"] if arguments.all else distill.best(log.records)
    weights = {}
    if arguments.model:
        prepared = prepare(arguments.model)
        for layer in (*prepared.as_given.layers, *prepared.layers):
            weights[layer.spec, layer.pattern.value_digest] = layer.weight
    verdicts = []
    for verdict in validate.validate(chosen, weights):
        verdicts.append(verdict)
        console.print(Text(f"[{len(verdicts)}/{len(chosen)}] {verdict.record.schedule}: {verdict.result}"))
    return {**validate.summary(verdicts), "rejected_lines": _rejected(log.rejected)}


_ACTIONS: dict[str, Callable[[argparse.Namespace, Console], dict[str, Any]]] = {
    "stats": _stats,
    "best": _best,
    "page": _page,
    "merge": _merge,
    "distill": _distill,
    "publish": _publish,
    "validate": _validate,
}


def _counts(log: TuningLog) -> dict[str, Any]:
    return {**log.stats(), "rejected_lines": _rejected(log.rejected)}


def _rejected(lines: list[Rejected]) -> list[dict[str, Any]]:
    return [
        {"file": str(line.path), "line": line.line_number, "reason": line.reason, "newer": line.newer} for line in lines
    ]


def _row(record: TuningRecord) -> dict[str, Any]:
    return {
        "convolution": record.spec.key,
        "density": record.pattern.density,
        "schedule": record.schedule,
        "time_us": record.time_us if record.times_us else None,
        "warm_time_us": record.warm_time_us if record.times_us else None,
        "dense_time_us": record.dense_time_us,
        "speedup": record.speedup,
        "machine": " ".join(str(record.fingerprint[key]) for key in ("kind", "arch", "threads")),
        "timestamp": record.timestamp,
    }


def exit_code(document: dict[str, Any]) -> int:
    """Of a verification that failed; 0 otherwise."""
    return VerificationError.exit_code if document.get("failed") else 0


_COLUMNS = {
    "best": {
        "convolution": "convolution",
        "density": "density",
        "schedule": "schedule",
        "time_us": "us",
        "dense_time_us": "dense us",
        "speedup": "speed-up",
        "machine": "machine",
    },
    "validate": {
        "convolution": "convolution",
        "schedule": "schedule",
        "machine": "machine",
        "result": "result",
        "error": "of the bound",
        "note": "note",
    },
}


def show(document: dict[str, Any], console: Console) -> None:
    """A table of records, counts, or pages."""
    action = document["action"]
    if action in _COLUMNS:
        title = "Best kernels" if action == "best" else "Kernels verified again"
        console.print(tables.TableView(title, document["records"], _COLUMNS[action]))
    if action == "validate":
        counts = {name: document[name] for name in ("verified", "structure", "failed")}
        console.print(Text("{verified} verified, {structure} by structure only, {failed} failed".format(**counts)))
    if action in ("stats", "merge", "distill", "publish"):
        _show_counts(document, console)
    for line in document.get("rejected_lines", ()):
        console.print(Text(f"{line['file']}, line {line['line']}: skipped, {line['reason']}"))
    for each in document.get("pages", ()):
        console.file.write(each["text"])
    if "output" in document:
        kept = document["kept"] if "kept" in document else document["records"]
        console.print(Text(f"written: {document['output']}, {kept} records"))
    if "folder" in document:
        console.print(Text(f"published: {document['folder']}, {document['published']} records"))


def _show_counts(document: dict[str, Any], console: Console) -> None:
    for key in ("records", "weights", "convolutions"):
        console.print(Text(f"{key}: {document[key]}"))
    schedules: Counter[str] = Counter()
    for name, count in document["schedules"].items():
        schedules[schedule_of(name)] += count
    for key, counts in (("status", document["status"]), ("schedules", schedules), ("machines", document["machines"])):
        text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        console.print(Text(f"{key}: {text or 'none'}"))
    for row in document.get("causes", ()):
        console.print(Text(f"failed {row['count']}: {row['schedule']}, {row['status']}: {row['cause']}"))
