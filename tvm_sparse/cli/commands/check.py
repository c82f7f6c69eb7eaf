"""``check``: compare a compiled model with the float64 reference and with the runtime its file is made for."""

import argparse
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from rich.text import Text
from tvm.target import Target

from tvm_sparse.cli import common
from tvm_sparse.cli.input_files import read_inputs
from tvm_sparse.compiler.build_model import Compilation, build
from tvm_sparse.compiler.building import build_progress
from tvm_sparse.compiler.checking.half_accuracy import accuracies
from tvm_sparse.compiler.checking.layer_check import (
    WRONG,
    Exposed,
    LayerCheck,
    agreement_of,
    check_outputs,
    first_divergence,
)
from tvm_sparse.compiler.checking.onnx_runtime import OnnxRuntime, Trace
from tvm_sparse.compiler.checking.random_inputs import outputs_of, random_inputs
from tvm_sparse.compiler.pipeline import Options
from tvm_sparse.compiler.plan.dense_fallback import to_dense
from tvm_sparse.conv.dtypes import FLOAT32, INT8
from tvm_sparse.conv.storage import is_half
from tvm_sparse.display import tables
from tvm_sparse.errors import InputError, VerificationError
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.target.resolve import resolve_target, target_json
from tvm_sparse.verdict.agreement import schedules_of

# Columns of the table of a half-precision model's accuracy.
ACCURACY = {
    "name": "output",
    "samples": "samples",
    "largest": "largest difference / largest",
    "mean": "mean difference / largest",
    "same_class": "same class",
}
# Runs a model in another runtime.
Baseline = Callable[[Sequence[np.ndarray]], Trace]


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: for random and for given inputs, one object a convolution and one an output."""
    target = resolve_target(arguments.target)
    log = common.log_to_read(arguments, console)
    prepared = common.prepared(arguments)
    compilation = Compilation(prepared, target, log, Options(arguments.allow_tf32))
    with build_progress.shown(console) as on_progress:
        compiled = compilation.build(on_progress)
    exposed = Exposed.of(prepared)
    # A kernel that pools too has no output of the convolution to show.
    shown = [
        to_dense(d, target, "its output is shown") if family_of(d.schedule).computes_pool else d
        for d in compilation.plan.decisions
    ]
    with build_progress.shown(console) as on_progress:
        exposed_model = build(exposed.prepared, shown, target, on_progress)
    baseline_name, baseline, note = _baseline(arguments, prepared)
    console.print(Text(note or f"comparing with {baseline_name}"))
    given = _inputs(arguments, compiled)
    dtypes = [layer.spec.dtype for layer in exposed.prepared.layers] + [INT8] * prepared.is_quantised
    agreement = agreement_of(schedules_of(compiled, arguments.allow_tf32), dtypes)
    rows = [
        {
            "input": name,
            **_check(compiled, exposed, exposed_model, next(_batches(compiled, inputs)), baseline, agreement),
        }
        for name, inputs in given.items()
    ]
    if any(is_half(layer.spec.dtype) for layer in prepared.layers):
        float32 = _in_float32(arguments, target, log)
        for row, inputs in zip(rows, given.values(), strict=True):
            row["accuracy"] = _accuracy(compiled, float32, inputs)
    return {
        "model": str(arguments.model),
        "target": target_json(target),
        "baseline": baseline_name,
        "agreement": agreement,
        "inputs": rows,
        "notes": [note] if note else [],
    }


def _in_float32(arguments: argparse.Namespace, target: Target, log: TuningLog) -> CompiledModel:
    """The model in float32, dense or as the log says."""
    prepared = prepare(arguments.model, shapes=dict(arguments.input_shape), dtype=FLOAT32)
    return Compilation(prepared, target, log, Options(arguments.allow_tf32, predict=False)).build()


def _accuracy(compiled: CompiledModel, float32: CompiledModel, inputs: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """How near the outputs come to those in float32, on all samples; both models hold these exactly."""
    found, expected, dtypes = [], [], [spec.dtype for spec in float32.signature.inputs]
    for batch in _batches(compiled, inputs):
        found.append(outputs_of(compiled, batch))
        expected.append(outputs_of(float32, common.as_stored(batch, dtypes)))
    names = [spec.name for spec in compiled.signature.outputs]
    joined = ([np.concatenate(each) for each in zip(*parts, strict=True)] for parts in (found, expected))
    return accuracies(names, *joined)


def _batches(compiled: CompiledModel, inputs: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Samples of `inputs`, as many at a time as the model takes."""
    sizes = [spec.shape[0] if spec.shape else 1 for spec in compiled.signature.inputs]
    for start in range(len(inputs[0]) // sizes[0]):
        yield [each[start * size : (start + 1) * size] for each, size in zip(inputs, sizes, strict=True)]


def _inputs(arguments: argparse.Namespace, compiled: CompiledModel) -> dict[str, list[np.ndarray]]:
    """Random inputs and, where they are given, the user's, by how they are called."""
    found = {f"random, seed {arguments.seed}": random_inputs(compiled.signature.inputs, arguments.seed)}
    if arguments.input is not None:
        arrays = read_inputs(arguments.input, compiled)
        for spec, array in zip(compiled.signature.inputs, arrays, strict=True):
            if not np.isfinite(array).all():
                hint = "see docs/hardening.md for what happens to NaN and infinity"
                raise InputError(str(arguments.input), f"input {spec.name} holds NaN or infinity", hint=hint)
            if array.ndim != len(spec.shape) or array.shape[1:] != spec.shape[1:] or array.shape[0] % spec.shape[0]:
                allowed = f"{spec.shape}, or several times as many samples"
                raise InputError(str(arguments.input), f"input {spec.name} has the wrong shape", array.shape, allowed)
        found[str(arguments.input)] = arrays
    return found


def _baseline(arguments: argparse.Namespace, prepared: PreparedModel) -> tuple[str | None, Baseline | None, str]:
    """The runtime that a model file is made for, how to run it, and where there is none here, why."""
    path = arguments.model
    if path.suffix != ".onnx":
        return "torch", _torch(path, prepared), ""
    if importlib.util.find_spec("onnxruntime") is None:
        return None, None, "compared with the float64 reference only; pip install onnxruntime to compare with that too"
    specs = {layer.name: layer.spec for layer in prepared.layers}
    runtime = OnnxRuntime(path, dict(arguments.input_shape), specs)
    return "onnxruntime", lambda inputs: runtime.run(common.as_stored(inputs, prepared.inputs)), ""


def _torch(path: Path, prepared: PreparedModel) -> Baseline:
    """Run the program in a .pt2 file; torch shows its outputs only."""
    import torch

    from tvm_sparse.frontend.torch.pt2_file import load_exported_program

    module = load_exported_program(path).module()

    def call(inputs: Sequence[np.ndarray]) -> Trace:
        # NumPy's bfloat16 is not torch's; TVM knows both.
        tensors = [torch.from_dlpack(tvm.runtime.tensor(value)) for value in common.as_stored(inputs, prepared.inputs)]
        with torch.no_grad():
            result = module(*tensors)
        leaves = torch.utils._pytree.tree_leaves(result)
        return Trace([(tensor.float() if tensor.is_floating_point() else tensor).numpy() for tensor in leaves], {})

    return call


def _check(
    compiled: CompiledModel,
    exposed: Exposed,
    exposed_model: CompiledModel,
    inputs: Sequence[np.ndarray],
    baseline: Baseline | None,
    agreement: float,
) -> dict[str, Any]:
    trace = baseline(inputs) if baseline is not None else None
    tensors = outputs_of(exposed_model, inputs)
    schedules = [row["schedule"] for row in exposed_model.report()]
    layers = exposed.check_layers(tensors, schedules, trace)
    names = [spec.name for spec in compiled.signature.outputs]
    # Without a baseline, the model that is used is still held against the one whose layers were checked.
    expected = trace.outputs if trace is not None else tensors[: len(names)]
    outputs = check_outputs(names, outputs_of(compiled, inputs), expected, agreement)
    first = first_divergence([*layers, *outputs])
    return {
        "layers": [each.to_json() for each in layers],
        "outputs": [each.to_json() for each in outputs],
        "first_divergence": first.to_json() if first is not None else None,
        "sentence": _sentence(first) if first is not None else None,
    }


def _sentence(first: LayerCheck) -> str:
    if first.verdict == WRONG:
        error = first.error if first.error is not None else np.nan
        times = f"{error:.3g} times" if np.isfinite(error) else "not a number against"
        return f"layer {first.name} ({first.schedule}) is wrong: {times} its error bound"
    place = f"layer {first.name}" if first.schedule is not None else first.name
    because = "; its own kernel is right, so look at the operators before it" if first.error is not None else ""
    return f"{place} is where results begin to differ, by {tables.cell(first.difference)} of the largest value{because}"


def failure(document: Mapping[str, Any]) -> VerificationError | None:
    """The first divergence on any input."""
    for each in document["inputs"]:
        if each["sentence"] is not None:
            allowed = f"1 time the bound, and {document['agreement']} of the largest value"
            hint = "report it with the model, and compile without --tuning-records meanwhile"
            return VerificationError(
                document["model"], f"on {each['input']} {each['sentence']}", None, f"up to {allowed}", hint
            )
    return None


def show(document: dict[str, Any], console: Console) -> None:
    """One table for each input, a row for each convolution and output."""
    columns = {
        "name": "layer or output",
        "schedule": "kernel",
        "error": "our error",
        "baseline_error": f"{document['baseline']}'s",
        "difference": "difference",
        "verdict": "",
    }
    if document["baseline"] is None:
        del columns["baseline_error"]
    for each in document["inputs"]:
        rows = [*each["layers"], *each["outputs"]]
        console.print(tables.table(f"On input: {each['input']}", rows, columns, name="name"))
        console.print(Text("Errors are shares of the bound, differences of the largest value."))
        console.print()
        if "accuracy" in each:
            title = f"Accuracy against the same model in float32, on input: {each['input']}"
            console.print(tables.table(title, each["accuracy"], ACCURACY))
            console.print()
    for note in document["notes"]:
        console.print(Text(note))
    if failure(document) is None:
        console.print(Text("All layers are within their bounds, and all results agree."))
