"""``check``: compare a compiled model with the float64 reference and with the runtime its file is made for."""

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from tvm_sparse.cli import common, tables
from tvm_sparse.compiler import build_progress
from tvm_sparse.compiler.build_model import build
from tvm_sparse.compiler.kernel_selection import decide
from tvm_sparse.compiler.layer_check import WRONG, Exposed, LayerCheck, agreement_of, check_outputs, first_divergence
from tvm_sparse.compiler.onnx_runtime import OnnxRuntime, Trace
from tvm_sparse.errors import InputError, VerificationError
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.target.resolve import resolve_target, target_json

# Runs a model in another runtime.
Baseline = Callable[[Sequence[np.ndarray]], Trace]


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: for random and for given inputs, one object a convolution and one an output."""
    target = resolve_target(arguments.target)
    log = common.log_to_read(arguments, console)
    prepared = common.prepared(arguments)
    decisions = decide(prepared.layers, target, log, arguments.allow_tf32, predict=True)
    with build_progress.shown(console) as on_progress:
        compiled = build(prepared, decisions, target, on_progress)
    exposed = Exposed.of(prepared)
    exposed_model = build(exposed.prepared, decisions, target)
    baseline_name, baseline, note = _baseline(arguments, prepared)
    console.print(Text(note or f"comparing with {baseline_name}"))
    rows = [
        {"input": name, **_check(compiled, exposed, exposed_model, inputs, baseline)}
        for name, inputs in _inputs(arguments, compiled).items()
    ]
    return {
        "model": str(arguments.model),
        "target": target_json(target),
        "baseline": baseline_name,
        "agreement": agreement_of(row["schedule"] for row in compiled.report()),
        "inputs": rows,
        "notes": [note] if note else [],
    }


def _inputs(arguments: argparse.Namespace, compiled: CompiledModel) -> dict[str, list[np.ndarray]]:
    """Random inputs and, where they are given, the user's, by how they are called."""
    found = {f"random, seed {arguments.seed}": common.random_inputs(compiled, arguments.seed)}
    if arguments.input is not None:
        arrays = common.read_inputs(arguments.input, compiled)
        for spec, array in zip(compiled.signature.inputs, arrays, strict=True):
            if not np.isfinite(array).all():
                hint = "see docs/hardening.md for what happens to NaN and infinity"
                raise InputError(str(arguments.input), f"input {spec.name} holds NaN or infinity", hint=hint)
        found[str(arguments.input)] = arrays
    return found


def _baseline(arguments: argparse.Namespace, prepared: PreparedModel) -> tuple[str | None, Baseline | None, str]:
    """The runtime that a model file is made for, how to run it, and where there is none here, why."""
    path = arguments.model
    if path.suffix != ".onnx":
        return "torch", _torch(path), ""
    if importlib.util.find_spec("onnxruntime") is None:
        return None, None, "compared with the float64 reference only; pip install onnxruntime to compare with that too"
    specs = {layer.name: layer.spec for layer in prepared.layers}
    return "onnxruntime", OnnxRuntime(path, dict(arguments.input_shape), specs).run, ""


def _torch(path: Path) -> Baseline:
    """Run the program in a .pt2 file; torch shows its outputs only."""
    import torch

    from tvm_sparse.frontend.torch_export import load_exported_program

    module = load_exported_program(path).module()

    def call(inputs: Sequence[np.ndarray]) -> Trace:
        with torch.no_grad():
            result = module(*map(torch.from_numpy, inputs))
        return Trace([tensor.numpy() for tensor in torch.utils._pytree.tree_leaves(result)], {})

    return call


def _check(
    compiled: CompiledModel,
    exposed: Exposed,
    exposed_model: CompiledModel,
    inputs: Sequence[np.ndarray],
    baseline: Baseline | None,
) -> dict[str, Any]:
    trace = baseline(inputs) if baseline is not None else None
    tensors = common.outputs_of(exposed_model, inputs)
    schedules = [row["schedule"] for row in exposed_model.report()]
    layers = exposed.check_layers(tensors, schedules, trace)
    names = [spec.name for spec in compiled.signature.outputs]
    # Without a baseline, the model that is used is still held against the one whose layers were checked.
    expected = trace.outputs if trace is not None else tensors[: len(names)]
    outputs = check_outputs(names, common.outputs_of(compiled, inputs), expected, agreement_of(schedules))
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
        "schedule": "computed by",
        "error": "our error / bound",
        "baseline_error": f"{document['baseline']} error / bound",
        "difference": "difference / largest",
        "verdict": "",
    }
    if document["baseline"] is None:
        del columns["baseline_error"]
    for each in document["inputs"]:
        console.print(tables.table(f"On input: {each['input']}", [*each["layers"], *each["outputs"]], columns))
        console.print()
    for note in document["notes"]:
        console.print(Text(note))
    if failure(document) is None:
        console.print(Text("All layers are within their bounds, and all results agree."))
