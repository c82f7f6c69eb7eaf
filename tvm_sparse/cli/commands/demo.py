"""``demo``: inspect, tune, compile, check and time the networks that ship with the package."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text
from tvm.target import Target

from tvm_sparse.autotune import session
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.progress.live_progress import LiveProgress
from tvm_sparse.cli import common, demo_data
from tvm_sparse.compiler.build_model import build
from tvm_sparse.compiler.checking.onnx_session import onnx_runtime
from tvm_sparse.compiler.checking.random_inputs import outputs_of
from tvm_sparse.compiler.plan.dense_fallback import all_dense
from tvm_sparse.compiler.plan.expected_gain import verdict_of
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.display import tables
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure import timing
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.reports.inspection import Inspection, document
from tvm_sparse.runtime.calls import caller
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.target.compatibility import require_first
from tvm_sparse.target.resolve import device_index, resolve_target, thread_count
from tvm_sparse.verdict.agreement import check_agreement
from tvm_sparse.verdict.measured import Times, compared

PRUNED, SAME_DENSE, DENSE = "pruned, tvm-sparse", "pruned, dense kernels", "before pruning, dense kernels"
STEPS = 5


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: what was tuned, the decision table, accuracies, differences and times."""
    require_first(device_index(arguments.target))
    target = resolve_target(arguments.target)
    threads = thread_count(target)
    log = TuningLog(arguments.output).checked()

    _say(console, 1, "what is sparse in a network that reads digits")
    pruned = prepare(demo_data.model_path("pruned"))
    plan = Plan.of(pruned, decide(pruned.layers, target, log, predict=True), target)
    expected = verdict_of(plan)
    console.print(Inspection(document("digits_pruned.onnx", plan)))

    _say(console, 2, f"search kernels, {arguments.trials} candidates a layer; results go to {log.path}")
    progress = LiveProgress(console)
    # Short measurements: a demo shows the way, and its kernels take microseconds.
    measure = MeasureOptions(repeats=5, min_repeat_ms=2.0)
    options = TuneOptions(trials=arguments.trials, seed=arguments.seed, measure=measure)
    session.tune_tasks(session.tasks_of(pruned.layers), target, log, options, progress)

    _say(console, 3, "compile: pruned, pruned with dense kernels, and the network before pruning")
    models = _compile_all(pruned, target, log)

    _say(console, 4, "check all held-out images")
    logits = {name: _logits(partial(outputs_of, model)) for name, model in models.items()}
    right = {name: int((found.argmax(axis=1) == demo_data.labels()).sum()) for name, found in logits.items()}
    differences = _compare_outputs(logits, threads)

    _say(console, 5, "time all three in turns, one image a run")
    calls = {name: caller(model, [demo_data.images()[:1]]) for name, model in models.items()}
    times = timing.interleave(calls, arguments.repeat)
    return {
        "log": str(log.path),
        "threads": threads,
        "tasks": [task.to_json() for task in progress.tasks],
        "layers": models[PRUNED].report(),
        "images": len(demo_data.labels()),
        "right": right,
        "differences": differences,
        "rounds": arguments.repeat,
        "times": compared(times),
        "verdict": Times(threads, {name: times[name] for name in (PRUNED, SAME_DENSE)}).verdict(expected).to_json(),
    }


def _say(console: Console, step: int, text: str) -> None:
    console.print()
    console.print(Text(f"Step {step} of {STEPS}: {text}", style="bold"))


def _compile_all(pruned: PreparedModel, target: Target, log: TuningLog) -> dict[str, CompiledModel]:
    """The three models, the one of interest first."""
    before = prepare(demo_data.model_path("dense"))

    def dense(model: PreparedModel) -> CompiledModel:
        decisions = all_dense(decide(model.layers, target, log), target, "this is the baseline")
        return build(model, decisions, target)

    return {
        PRUNED: build(pruned, decide(pruned.layers, target, log), target),
        SAME_DENSE: dense(pruned),
        DENSE: dense(before),
    }


def _logits(call: Callable[[Sequence[np.ndarray]], list[np.ndarray]]) -> np.ndarray:
    """What a network gives for all images, one image a run: (N, 10)."""
    return np.concatenate([call([image[None]])[0] for image in demo_data.images()])


def _compare_outputs(logits: dict[str, np.ndarray], threads: int) -> dict[str, float]:
    """Largest difference of our outputs from others', as a fraction of the largest output; see `check_agreement`."""
    expected = {"dense kernels": logits[SAME_DENSE]}
    baseline = onnx_runtime(demo_data.model_path("pruned"), threads)
    if baseline is not None:
        expected["ONNX Runtime"] = _logits(baseline)
    return {
        name: check_agreement(f"digits_pruned.onnx against {name}", [logits[PRUNED]], [wanted])
        for name, wanted in expected.items()
    }


def show(document: dict[str, Any], console: Console) -> None:
    """Decision table, accuracy and speed."""
    console.print()
    console.print(tables.layers("What computes each layer", document["layers"]))
    console.print()
    new = sum(task["new_trials"] for task in document["tasks"])
    known = sum(task["trials"] for task in document["tasks"]) - new
    console.print(Text(f"Tuning: {new} new trials, {known} from {document['log']}"))
    for name in (DENSE, PRUNED):
        right, images = document["right"][name], document["images"]
        console.print(Text(f"Accuracy, {name}: {right / images:.1%} ({right} of {images} held-out images)"))
    for name, difference in document["differences"].items():
        found = f"within {difference:.1e} of the largest" if difference else "the same"
        console.print(Text(f"Outputs of the pruned network, compared with {name}: {found}"))
    console.print()
    title = f"One image, {document['threads']} thread(s), {document['rounds']} rounds in turns"
    console.print(tables.times(title, document["times"]))
    common.show_verdicts([document["verdict"]], console)
