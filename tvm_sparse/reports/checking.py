"""`check`: a compiled model beside the float64 reference and the runtime that its source is made for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from tvm_sparse.compiler.build_model import Compilation, build
from tvm_sparse.compiler.building.build_kernels import OnProgress
from tvm_sparse.compiler.building.build_progress import told
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
from tvm_sparse.compiler.comparison.compare import Source
from tvm_sparse.compiler.comparison.reference import NotCompared, Way
from tvm_sparse.compiler.comparison.torch_reference import TorchReference
from tvm_sparse.compiler.plan.dense_fallback import to_dense
from tvm_sparse.conv.dtypes import FLOAT32, INT8
from tvm_sparse.conv.storage import is_half, stored
from tvm_sparse.display import tables
from tvm_sparse.display.live_line import steps
from tvm_sparse.errors import BuildError, InputError, VerificationError
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.reports.report import BLANK, Part, Report, of_variants
from tvm_sparse.request.options import CompileOptions, takes
from tvm_sparse.request.request import Request
from tvm_sparse.request.variant import Variant
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.input_files import read_inputs
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.target.resolve import target_json
from tvm_sparse.verdict.agreement import schedules_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

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


class Check(Report):
    """What `check` found: for each input the error of each layer, and of each output its difference."""

    @property
    def failure(self) -> VerificationError | None:
        """The first divergence on any input; None where all is well."""
        return next(filter(None, map(_failure, self._documents)), None)

    def _parts(self, document: dict[str, Any]) -> Iterator[Part]:
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
            variant = f"{document['variant']}, " if "variant" in document else ""
            yield tables.TableView(f"On input: {variant}{each['input']}", rows, columns, name="name")
            yield Text("Errors are shares of the bound, differences of the largest value.")
            yield BLANK
            if "accuracy" in each:
                title = f"Accuracy against the same model in float32, on input: {each['input']}"
                yield tables.TableView(title, each["accuracy"], ACCURACY)
                yield BLANK
        yield from map(Text, document["notes"])
        if _failure(document) is None:
            yield Text("All layers are within their bounds, and all results agree.")


@takes(CompileOptions)
def check(
    source: Any,
    example_inputs: Any = None,
    *,
    inputs: Any = None,
    seed: int = 0,
    progress: bool | None = None,
    **options: Unpack[CompileOptions],
) -> Check:
    """Compile a model as `compile` does, run it, and compare what it computes layer by layer.

    Each convolution is held against a float64 reference and its error bound; ONNX Runtime, or torch for models of
    torch, runs the same network beside it. Of a model in half precision, or one that is
    quantised here, outputs are compared with float32 ones too.

    Parameters
    ----------
    source, example_inputs
        The model, as `tvm_sparse.compile` takes it.
    inputs
        Run it on these too, and not on random numbers alone: a .npy or .npz file, a dict of arrays by input name, or
        one array or a sequence of them. They may hold several times as many samples as the model takes.
    seed
        Of random inputs.
    progress
        Whether to show how far it is; None: where standard error is a terminal or Jupyter runs.
    **options
        Of `CompileOptions`.

    Returns
    -------
    A report; its `failure` is None, or says where results first diverge.

    Raises
    ------
    ModelError, UsageError, LogError, InputError, BuildError
        The model, an option, the log or an input cannot be used, or something does not build or run.
    """
    request = Request.of(source, example_inputs, **options)

    def of_one(name: str, variant: Variant, prepared: PreparedModel) -> dict[str, Any]:
        return _Checking(request, variant, prepared, progress).document(name, inputs, seed)

    return Check(of_variants(request, progress, of_one))


class _Checking:
    """The model of one variant, compiled, and once more with all its layers shown, beside its baseline."""

    def __init__(self, request: Request, variant: Variant, prepared: PreparedModel, progress: bool | None):
        self._request, self._variant, self._prepared, self._progress = request, variant, prepared, progress
        compilation = Compilation.of(request, prepared)
        self._compiled = self._built(compilation.build)
        self._exposed = Exposed.of(prepared)
        # A kernel that pools too has no output of the convolution to show.
        shown = [
            to_dense(d, request.resolved, "its output is shown") if family_of(d.schedule).computes_pool else d
            for d in compilation.plan.decisions
        ]
        self._shown = self._built(partial(build, self._exposed.prepared, shown, request.resolved))
        self._baseline_name, self._baseline, self._note = _baseline(request, variant, prepared)
        dtypes = [layer.spec.dtype for layer in prepared.layers] + [INT8] * prepared.is_quantised
        self._agreement = agreement_of(schedules_of(self._compiled, request.allow_tf32), dtypes)

    def _built(self, make: Callable[[OnProgress | None], CompiledModel]) -> CompiledModel:
        with told(self._progress) as on_progress:
            model = make(on_progress)
        model.run_on(self._request.device_index)
        return model

    def document(self, name: str, inputs: Any, seed: int) -> dict[str, Any]:
        """For random and for given inputs one object a layer and one an output."""
        signature = self._compiled.signature
        given = {f"random, seed {seed}": random_inputs(signature.inputs, seed)}
        if inputs is not None:
            is_file = isinstance(inputs, str | Path)
            given[str(inputs) if is_file else "yours"] = self._read(inputs)
        with steps(self._progress) as say:
            rows = [{"input": each, **self._row(arrays, say)} for each, arrays in given.items()]
            if self._request.unquantised or any(is_half(layer.spec.dtype) for layer in self._prepared.layers):
                say("comparing with float32")
                float32 = self._in_float32()
                for row, arrays in zip(rows, given.values(), strict=True):
                    row["accuracy"] = self._accuracy(float32, arrays)
        return {
            "model": name,
            "target": target_json(self._request.resolved),
            "baseline": self._baseline_name,
            "agreement": self._agreement,
            "inputs": rows,
            "notes": [self._note] if self._note else [],
        }

    def _read(self, inputs: Any) -> list[np.ndarray]:
        """The user's inputs, by their order in the model."""
        where = str(inputs) if isinstance(inputs, str | Path) else "inputs"
        found = read_inputs(inputs, self._compiled)
        for spec, array in zip(self._compiled.signature.inputs, found, strict=True):
            if not np.isfinite(array).all():
                hint = "see docs/hardening.md for what happens to NaN and infinity"
                raise InputError(where, f"input {spec.name} holds NaN or infinity", hint=hint)
            if array.ndim != len(spec.shape) or array.shape[1:] != spec.shape[1:] or array.shape[0] % spec.shape[0]:
                allowed = f"{spec.shape}, or several times as many samples"
                raise InputError(where, f"input {spec.name} has the wrong shape", array.shape, allowed)
        return found

    def _row(self, arrays: Sequence[np.ndarray], say: Callable[[str], None]) -> dict[str, Any]:
        inputs = next(self._batches(arrays))
        say(f"running {self._baseline_name}")
        trace = self._baseline(inputs) if self._baseline is not None else None
        say("computing the layers in float64")
        tensors = outputs_of(self._shown, inputs)
        schedules = [row["schedule"] for row in self._shown.report()]
        layers = self._exposed.check_layers(tensors, schedules, trace)
        names = [spec.name for spec in self._compiled.signature.outputs]
        # Without a baseline, the model that is used is still held against the one whose layers were checked.
        expected = trace.outputs if trace is not None else tensors[: len(names)]
        outputs = check_outputs(names, outputs_of(self._compiled, inputs), expected, self._agreement)
        first = first_divergence([*layers, *outputs])
        return {
            "layers": [each.to_json() for each in layers],
            "outputs": [each.to_json() for each in outputs],
            "first_divergence": first.to_json() if first is not None else None,
            "sentence": _sentence(first) if first is not None else None,
        }

    def _in_float32(self) -> CompiledModel:
        """The model in float32, dense or as the log says."""
        source = self._request.unquantised or self._request.source
        request = replace(self._request, source=source, dtype=FLOAT32, predict=False)
        return Compilation.of(request, request.prepared(self._variant)).build()

    def _accuracy(self, float32: CompiledModel, arrays: Sequence[np.ndarray]) -> list[dict[str, Any]]:
        """How near the outputs come to those in float32, on all samples; both models hold these exactly."""
        found, expected, dtypes = [], [], [spec.dtype for spec in float32.signature.inputs]
        for batch in self._batches(arrays):
            found.append(outputs_of(self._compiled, batch))
            expected.append(outputs_of(float32, _as_stored(batch, dtypes)))
        names = [spec.name for spec in self._compiled.signature.outputs]
        joined = ([np.concatenate(each) for each in zip(*parts, strict=True)] for parts in (found, expected))
        return accuracies(names, *joined)

    def _batches(self, arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """Samples, as many at a time as the model takes."""
        sizes = [spec.shape[0] if spec.shape else 1 for spec in self._compiled.signature.inputs]
        for start in range(len(arrays[0]) // sizes[0]):
            yield [each[start * size : (start + 1) * size] for each, size in zip(arrays, sizes, strict=True)]


def _baseline(request: Request, variant: Variant, prepared: PreparedModel) -> tuple[str | None, Baseline | None, str]:
    """The runtime that a model is made for, how to run it, and where there is none here, why."""
    source = request.source
    if not isinstance(source, str | Path) or Path(source).suffix != ".onnx":
        way = next(TorchReference(source, Source.of(request, variant).examples).ways())
        return way.name, lambda inputs: _of_torch(way, _as_stored(inputs, prepared.inputs)), ""
    if importlib.util.find_spec("onnxruntime") is None:
        return None, None, "compared with the float64 reference only; pip install onnxruntime to compare with that too"
    specs = {layer.name: layer.spec for layer in prepared.layers}
    runtime = OnnxRuntime(Path(source), variant.shapes or {}, specs, variant.batch)
    return "onnxruntime", lambda inputs: runtime.run(_as_stored(inputs, prepared.inputs)), ""


def _of_torch(way: Way, inputs: Sequence[np.ndarray]) -> Trace:
    """What torch makes of the inputs; it shows its outputs only."""
    try:
        return Trace(way.run(inputs), {})
    except NotCompared as error:
        raise BuildError("model", f"torch does not run it ({error})", hint="see whether the module runs") from error


def _as_stored(inputs: Sequence[np.ndarray], dtypes: Sequence[str]) -> list[np.ndarray]:
    """Inputs in other types, such as those of the model's file; exact in float32 where they are of half precision."""
    return [stored(value, dtype) for value, dtype in zip(inputs, dtypes, strict=True)]


def _sentence(first: LayerCheck) -> str:
    if first.verdict == WRONG:
        error = first.error if first.error is not None else np.nan
        times = f"{error:.3g} times" if np.isfinite(error) else "not a number against"
        return f"layer {first.name} ({first.schedule}) is wrong: {times} its error bound"
    place = f"layer {first.name}" if first.schedule is not None else first.name
    because = "; its own kernel is right, so look at the operators before it" if first.error is not None else ""
    return f"{place} is where results begin to differ, by {tables.cell(first.difference)} of the largest value{because}"


def _failure(document: Mapping[str, Any]) -> VerificationError | None:
    """The first divergence on any input."""
    for each in document["inputs"]:
        if each["sentence"] is not None:
            allowed = f"up to 1 time the bound, and {document['agreement']} of the largest value"
            hint = "report it with the model, and compile without that log meanwhile"
            return VerificationError(document["model"], f"on {each['input']} {each['sentence']}", None, allowed, hint)
    return None
