"""`report`: what a model's layers do and why, as one HTML page to keep or to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_sparse.display.html_page import Chapter, page
from tvm_sparse.display.words import DENSE, PREDICTED, ratio
from tvm_sparse.errors import typed
from tvm_sparse.reports.inspection import inspect
from tvm_sparse.request.options import CompileOptions, refuse_for_compiled, takes
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.multi_shape_model import AnyModel, MultiShapeModel
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target
from tvm_sparse.version import __version__

if TYPE_CHECKING:
    from tvm.target import Target
    from typing_extensions import Unpack

# Layers about which the page says what would help: those that take longest.
MOST_ADVICE = 5


@takes(CompileOptions)
def report(
    source: Any,
    example_inputs: Any = None,
    *,
    trust: bool = False,
    progress: bool | None = None,
    **options: Unpack[CompileOptions],
) -> str:
    """Tell what a model's layers do, why, and what would help, as one HTML page that needs nothing else.

    Of a model it says what `inspect` finds, without building anything: times are predicted where no log has them. Of a
    compiled model it says what that was made of, with the times that were measured.

    Parameters
    ----------
    source
        A model as `tvm_sparse.compile` takes it, what that returned, or the folder of an artifact. The last two take no
        options but `trust`.
    example_inputs
        As `tvm_sparse.compile` takes them.
    trust
        As `tvm_sparse.load` takes it.
    progress
        Whether to show how far it is; None: where standard error is a terminal or Jupyter runs.
    **options
        Of `CompileOptions`.

    Returns
    -------
    The HTML document.

    Raises
    ------
    ModelError, UsageError, LogError, ArtifactError
        The model, an option, the log or the artifact cannot be used.
    """
    if isinstance(source, CompiledModel | MultiShapeModel):
        refuse_for_compiled(type(source).__name__, options)
        return _of_compiled(type(source).__name__, source)
    if isinstance(source, str | Path) and Path(source).is_dir():
        refuse_for_compiled(str(source), options)
        return _of_compiled(str(source), artifact.load(source, trust=trust))
    document = inspect(source, example_inputs, progress=progress, **options).to_json()
    chapters = [_inspected(each) for each in document.get("variants", [document])]
    return page(document["model"], chapters, _facts(resolve_target(document["target"])))


def _of_compiled(name: str, model: AnyModel) -> str:
    if isinstance(model, MultiShapeModel):
        chapters = [_compiled(f"{name}, {variant}", each) for variant, each in model.models.items()]
    else:
        chapters = [_compiled(name, model)]
    return page(name, chapters, _facts(model.target))


def _facts(target: Target) -> dict[str, str]:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return {**fingerprint_of(target), "tvm-sparse": __version__, "page made": now}


def _inspected(document: Mapping[str, Any]) -> Chapter:
    """What `inspect` found of one batch."""
    rows = []
    for row in document["layers"]:
        limit = [f"limited by {row['limit']}: {row['limit_text']}"] if row["limit"] else []
        rows.append(
            {**row, **_words(row), "why": "; ".join([row["reason"], *limit]), "advice": [*limit, *row["advice"]]}
        )
    advice = [
        f"{row['layer']}, {row['share']:.0%} of the layers' time: {'; '.join(row['advice'])}."
        for row in sorted(rows, key=lambda row: -row["share"])[:MOST_ADVICE]
        if row["advice"]
    ]
    if any(row["status"] == PREDICTED for row in rows):
        advice.append(f"Speed-ups with ~ are predicted. This measures them: {typed('optimize MODEL -o ARTIFACT')}")
    is_timed = any(row["status"] == "measured" for row in rows)
    basis = "from a log where it has them, else predicted" if is_timed else "predicted"
    return Chapter(document["model"], f"worth it: {document['worth_it']}", document["notes"], rows, advice, basis)


def _compiled(title: str, model: CompiledModel) -> Chapter:
    """What a compiled model of one batch consists of."""
    rows = [{**row, **_words(row), "why": row["reason"]} for row in model.report()]
    times = [row["time_us"] or (row["dense_time_us"] if row["kernel"] == DENSE else None) for row in rows]
    total_us = sum(each for each in times if each is not None)
    for row, time_us in zip(rows, times, strict=True):
        is_known = time_us is not None and total_us > 0
        row["time_us"] = time_us
        row["share"] = time_us / total_us if is_known else None
        row["dense_share"] = row["dense_time_us"] / total_us if is_known and row["dense_time_us"] else None
    verdict = model.verdict.line() if model.verdict is not None else "whether it pays is not known"
    return Chapter(title, verdict, [], rows, _next_steps(rows), "measured")


def _next_steps(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What would help a model that is compiled."""
    found = []
    untimed = sum(row["share"] is None and row["status"] == PREDICTED for row in rows)
    if untimed:
        measure = f"This measures them: {typed('optimize MODEL -o ARTIFACT')}"
        found.append(f"{untimed} of {len(rows)} layers have kernels that nobody timed here. {measure}")
    if known := [row for row in rows if row["share"] is not None]:
        heaviest = max(known, key=lambda row: row["share"])
        share = f"{heaviest['share']:.0%} of the time of all layers that were timed"
        found.append(f"{heaviest['layer']} takes {share}, more than any other: look at it first.")
    if unpruned := sum(row["status"] == "not pruned" for row in rows):
        found.append(f"{unpruned} of {len(rows)} layers are not pruned; only zeros make a layer faster.")
    found.append(f"What limits each layer, from the file that this was compiled from: {typed('report MODEL')}")
    return found


def _words(row: Mapping[str, Any]) -> dict[str, Any]:
    """Cells that a table shows in words."""
    speedup = row.get("speedup")
    about = "~" if row.get("status") == PREDICTED else ""
    return {
        "density": f"{row['density']:.2f}",
        "kernel": row.get("kernel", row["schedule"]),
        "speedup": None if speedup is None else f"{about}{ratio(speedup)}",
    }
