"""``bench``: time a model compiled with a log against the same model dense, or an artifact alone."""

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console
from tvm.target import Target

from tvm_sparse.cli import common
from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.building import build_progress
from tvm_sparse.compiler.checking.onnx_runtime import onnx_runtime
from tvm_sparse.compiler.checking.random_inputs import outputs_of, random_inputs
from tvm_sparse.compiler.pipeline import Options
from tvm_sparse.measure import timing
from tvm_sparse.runtime.artifacts import artifact
from tvm_sparse.target.resolve import resolve_target, thread_count

# Of each contender in a round: the clock of a processor that slept takes milliseconds to rise, which is all of a fast
# model's first call and a small part of a slow one's.
MIN_ROUND_MS = 100.0
OURS, DENSE, ONNX_RUNTIME = "tvm-sparse", "dense, same compiler", "onnxruntime"


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: times in microseconds and ratios, each with quartiles."""
    if arguments.model.is_dir():
        compiled = artifact.load(arguments.model, trust=arguments.trust)
        threads = thread_count(compiled.target)
        inputs = random_inputs(compiled.signature.inputs, arguments.seed)
        contenders = {OURS: common.caller(compiled, inputs)}
    else:
        target = resolve_target(arguments.target)
        threads = thread_count(target)
        contenders = _contenders(arguments, target, threads, console)
    times = timing.interleave(contenders, arguments.repeat, MIN_ROUND_MS)
    rows = common.compare(times)
    return {"model": str(arguments.model), "threads": threads, "rounds": arguments.repeat, "times": rows}


def _contenders(
    arguments: argparse.Namespace, target: Target, threads: int, console: Console
) -> dict[str, Callable[[], Any]]:
    """Ours, dense and, for ONNX on a CPU, ONNX Runtime; their outputs are compared first."""
    log = common.log_to_read(arguments, console)
    prepared = common.prepared(arguments)
    compilation = Compilation(prepared, target, log, Options(arguments.allow_tf32))
    with build_progress.shown(console) as on_progress:
        ours = compilation.build(on_progress)
    with build_progress.shown(console) as on_progress:
        dense = compilation.build_dense("this is the baseline", on_progress)
    inputs = random_inputs(ours.signature.inputs, arguments.seed)
    expected = outputs_of(dense, inputs)
    schedules = [each for model in (ours, dense) for each in common.schedules_of(model, arguments.allow_tf32)]
    dtypes = {spec.dtype for spec in (*ours.signature.inputs, *ours.signature.outputs)}
    common.check_agreement(str(arguments.model), outputs_of(ours, inputs), expected, schedules, dtypes)
    contenders = {OURS: common.caller(ours, inputs), DENSE: common.caller(dense, inputs)}
    baseline = onnx_runtime(arguments.model, threads) if target.kind.name == "llvm" else None
    if baseline is not None:
        given = common.as_stored(inputs, prepared.inputs)
        common.check_agreement(f"{arguments.model} in ONNX Runtime", baseline(given), expected, dtypes=dtypes)
        contenders[ONNX_RUNTIME] = lambda: baseline(given)
    return contenders


def show(document: dict[str, Any], console: Console) -> None:
    """One row a contender."""
    title = f"{document['model']}: {document['threads']} thread(s), {document['rounds']} rounds in turns"
    console.print(common.times_table(title, document["times"]))
