"""What several commands do with their arguments."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text
from tvm.target import Target

from tvm_sparse.conv.storage import stored
from tvm_sparse.display import tables
from tvm_sparse.errors import LogError
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.known_logs import DEFAULT_LOG, known_log
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog
from tvm_sparse.runtime.batched_model import AnyModel, BatchedModel
from tvm_sparse.runtime.comparison import Comparison
from tvm_sparse.target.resolve import resolve_target


def prepared(arguments: argparse.Namespace, batch: int | None = None) -> PreparedModel:
    """The model that is to be compiled, as `prepare` reads it."""
    return prepare(arguments.model, shapes=dict(arguments.input_shape), batch=batch, dtype=arguments.dtype)


def log_to_read(arguments: argparse.Namespace, console: Console, target: Target | None = None) -> TuningLog:
    """The logs of ``--tuning-records`` as one; without it all that are known (`known_logs`), `DEFAULT_LOG` first.

    Raises
    ------
    LogError
        A file that was asked for does not exist, cannot be read, or holds records of a newer tvm-sparse.
    """
    if not arguments.tuning_records:
        return reported(console, known_log(target or resolve_target(arguments.target), DEFAULT_LOG))
    # The first file of a log may be missing; none that was asked for may.
    return opened(console, NO_FILE, *arguments.tuning_records)


def log_to_write(arguments: argparse.Namespace, console: Console) -> TuningLog:
    """The log of ``--output`` over those of ``--tuning-records``; else the first of these over the others."""
    first, *rest = [path for path in (arguments.output, *arguments.tuning_records) if path] or [DEFAULT_LOG]
    return opened(console, first, *(path for path in rest if path != first))


def opened(console: Console, first: Path | str, *more: Path | str) -> TuningLog:
    """The log of these files; says which have lines that are no records, and LogError where they are a newer one's."""
    return reported(console, TuningLog(first, *more))


def reported(console: Console, log: TuningLog) -> TuningLog:
    """`log`; says which files have lines that are no records, and LogError where they are of a newer version."""
    log.require_known_schema()
    for path in dict.fromkeys(line.path for line in log.rejected):
        count = sum(line.path == path for line in log.rejected)
        console.print(Text(f"{path}: {count} line(s) skipped, see: tvm-sparse logs stats {path}"))
    return log


def existing_log(path: Path) -> Path:
    """`path`, which must be a file; LogError otherwise."""
    if not path.is_file():
        raise LogError(str(path), "no such file", hint="check the path, or make a log with: tvm-sparse tune MODEL")
    return path


def wants_comparison(arguments: argparse.Namespace) -> bool | None:
    """Whether to compare a compiled model with its source, as `tvm_sparse.compile` takes it."""
    return False if arguments.no_compare else None


def comparison_of(compiled: AnyModel) -> dict[str, Any] | None:
    """What the comparison of a compiled model with its source has shown; None where there was to be none."""
    return compiled.comparison.to_json() if compiled.comparison is not None else None


def show_comparison(document: Mapping[str, Any], console: Console) -> None:
    """The comparison in the document of a command that compiled a model, as a line."""
    if document["comparison"] is not None:
        console.print(Text(Comparison(**document["comparison"]).text()))


def as_stored(inputs: Sequence[np.ndarray], dtypes: Sequence[str]) -> list[np.ndarray]:
    """Inputs in other types, such as those of the model's file; exact in float32 where they are of half precision."""
    return [stored(value, dtype) for value, dtype in zip(inputs, dtypes, strict=True)]


def verdicts_of(model: AnyModel) -> list[dict[str, Any]]:
    """Whether a model pays, at each of its batches."""
    models = model.models.values() if isinstance(model, BatchedModel) else [model]
    return [each.verdict.to_json() for each in models if each.verdict is not None]


def show_details(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A line each layer: its kernel, and why that one."""
    for line in tables.detail_lines(rows):
        console.print(Text(line))
    console.print()


def show_verdicts(verdicts: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A line each, the last of what a command says."""
    for each in verdicts:
        console.print(Text(each["line"], style="bold"))


def times_table(title: str, rows: Sequence[Mapping[str, Any]]) -> tables.TableView:
    """A table of what `compared` returns."""
    ours = rows[0]["name"]
    cells = [
        {
            "name": row["name"],
            "median": row["time_us"]["median"],
            "spread": f"{tables.cell(row['time_us']['q1'])} - {tables.cell(row['time_us']['q3'])}",
            "speedup": _ratio_text(row),
        }
        for row in rows
    ]
    columns = {
        "name": "",
        "median": "median us",
        "spread": "quartiles us",
        "speedup": f"{ours} against it",
    }
    return tables.table(title, cells, columns)


def _ratio_text(row: Mapping[str, Any]) -> str | None:
    ratio = row["speedup"]
    if ratio is None:
        return None
    return f"{ratio['median']:.2f}x ({ratio['q1']:.2f} - {ratio['q3']:.2f}), {row['verdict']}"
