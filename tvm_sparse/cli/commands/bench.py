"""``bench``: time a model compiled with a log, or an artifact, against the same model dense."""

import argparse
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.text import Text

from tvm_sparse.cli import common
from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.building import build_progress
from tvm_sparse.compiler.pipeline import Options
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.runtime.artifacts import artifact
from tvm_sparse.runtime.batched_model import BatchedModel
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.resolve import resolve_target
from tvm_sparse.verdict.measured import Built, measured

BASELINE = "this is the baseline"


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: times in microseconds and ratios, each with quartiles, and the verdict."""
    contenders = _of_artifact if arguments.model.is_dir() else _of_model
    ours, dense, file, note = contenders(arguments, console)
    times = measured(ours, dense, file, arguments.seed, arguments.repeat)
    verdict = times.verdict(ours.model.verdict or Verdict.unknown(len(ours.model.report())))
    notes = [*([note] if note else []), *times.notes]
    return {
        "model": str(arguments.model),
        "threads": times.threads,
        "rounds": times.rounds,
        "times": times.rows(),
        "notes": notes,
        "verdict": replace(verdict, note="").to_json(),
    }


Contenders = tuple[Built, CompiledModel | None, ModelFile | None, str]


def _of_artifact(arguments: argparse.Namespace, console: Console) -> Contenders:
    """What is in the artifact, beside the model that it was made of, if that is still there."""
    model = artifact.load(arguments.model, trust=arguments.trust)
    ours, file = Built(model, arguments.model, arguments.trust), model.file
    obstacle = "it was compiled from no file" if file is None else file.obstacle()
    if file is None or obstacle:
        return ours, None, None, f"timed alone: {obstacle}"
    batch = model.batches[-1] if isinstance(model, BatchedModel) else None
    prepared = prepare(file.path, shapes=file.shapes, batch=batch, dtype=file.dtype)
    log = common.log_to_read(arguments, console, model.target)
    with build_progress.shown(console) as on_progress:
        dense = Compilation(prepared, model.target, log, Options(file.allow_tf32)).build_dense(BASELINE, on_progress)
    return ours, dense, file, ""


def _of_model(arguments: argparse.Namespace, console: Console) -> Contenders:
    """What is compiled of a model's file, beside it."""
    log, prepared = common.log_to_read(arguments, console), common.prepared(arguments)
    compilation = Compilation(prepared, resolve_target(arguments.target), log, Options(arguments.allow_tf32))
    with build_progress.shown(console) as on_progress:
        ours = compilation.build(on_progress)
    with build_progress.shown(console) as on_progress:
        dense = compilation.build_dense(BASELINE, on_progress)
    given = (dict(arguments.input_shape), arguments.dtype, arguments.allow_tf32, prepared.inputs)
    return Built(ours), dense, ModelFile.of(arguments.model, *given), ""


def show(document: dict[str, Any], console: Console) -> None:
    """One row a contender, and the verdict."""
    title = f"{document['model']}: {document['threads']} thread(s), {document['rounds']} rounds in turns"
    console.print(common.times_table(title, document["times"]))
    for note in document["notes"]:
        console.print(Text(note))
    common.show_verdicts([document["verdict"]], console)
