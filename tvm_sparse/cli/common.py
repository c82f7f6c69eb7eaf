"""What several commands do with their arguments."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tvm_sparse.cli import tables
from tvm_sparse.compiler.building.dense_products import IN_TF32
from tvm_sparse.compiler.checking.layer_check import agreement_of
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.conv.storage import stored
from tvm_sparse.errors import LogError, VerificationError
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.known_logs import DEFAULT_LOG, known_log
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog
from tvm_sparse.measure import timing
from tvm_sparse.runtime.batched_model import AnyModel
from tvm_sparse.runtime.comparison import Comparison
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.libraries import CUDNN
from tvm_sparse.target.resolve import resolve_target


def prepared(arguments: argparse.Namespace, batch: int | None = None) -> PreparedModel:
    """The model that is to be compiled, as `prepare` reads it."""
    return prepare(arguments.model, shapes=dict(arguments.input_shape), batch=batch, dtype=arguments.dtype)


def log_to_read(arguments: argparse.Namespace, console: Console) -> TuningLog:
    """The logs of ``--tuning-records`` as one; without it all that are known (`known_logs`), `DEFAULT_LOG` first.

    Raises
    ------
    LogError
        A file that was asked for does not exist, cannot be read, or holds records of a newer tvm-sparse.
    """
    if not arguments.tuning_records:
        return reported(console, known_log(resolve_target(arguments.target), DEFAULT_LOG))
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


def caller(compiled: AnyModel, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    """A function that runs the model on `inputs`, put on its device now, and returns when it has finished."""
    device = compiled.device
    placed = inputs if device.type == "cpu" else [tvm.runtime.tensor(value, device) for value in inputs]

    def call() -> Any:
        result = compiled(*placed)
        device.sync()
        return result

    return call


def check_agreement(
    where: str,
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    schedules: Iterable[str] = (),
    dtypes: Iterable[str] = (),
) -> float:
    """Largest difference of any output, as a fraction of that output's largest value.

    `schedules` compute the convolutions of either side, as far as they are known; tensors are stored in `dtypes`.

    Raises
    ------
    VerificationError
        It is more than `agreement_of` these; or a value is not finite where the expected one is.
    """
    worst = max(map(relative_difference, found, expected), default=0.0)
    agreement = agreement_of(schedules, dtypes)
    if not worst <= agreement:
        raise VerificationError(where, "the outputs differ", f"{worst:.3g} of the largest value", f"up to {agreement}")
    return worst


def schedules_of(model: CompiledModel, allow_tf32: bool) -> list[str]:
    """What computes the layers of `model`; for dense linear layers, which have no row, that cuDNN may in TF32."""
    return [row["schedule"] for row in model.report()] + [IN_TF32] * (allow_tf32 and CUDNN in model.libraries)


def compare(times: Mapping[str, tuple[float, ...]]) -> list[dict[str, Any]]:
    """One object a contender: its times, and how many times faster the first one is."""
    ours = next(iter(times.values()))
    rows = []
    for name, values in times.items():
        row = {"name": name, "time_us": timing.Quartiles.of(values).to_json(), "speedup": None, "verdict": None}
        if values is not ours:
            ratio = timing.speedup(ours, values)
            row |= {"speedup": ratio.to_json(), "verdict": timing.verdict(ratio)}
        rows.append(row)
    return rows


def times_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of what `compare` returns."""
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
