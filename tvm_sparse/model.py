"""Model -> compiled model: import, fold, choose a kernel for each convolution, replace, compile, verify."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu_generic
from tvm.target import Target

from tvm_sparse import environment, lowering, reference, space
from tvm_sparse.decide import Decision, decide, to_dense, without_skipping
from tvm_sparse.errors import BuildError, TvmSparseError
from tvm_sparse.importer import import_model
from tvm_sparse.log import TuningLog
from tvm_sparse.passes.check_constants import check_constants
from tvm_sparse.passes.find_convolutions import ConvLayer, find_convolutions
from tvm_sparse.passes.fold_batch_norm import fold_batch_norm
from tvm_sparse.passes.fold_constants import fold_constants
from tvm_sparse.passes.fold_padding import fold_padding
from tvm_sparse.passes.keep_nan import keep_nan
from tvm_sparse.passes.name_convolutions import name_convolutions
from tvm_sparse.passes.replace_convolutions import function_names, replace_convolutions
from tvm_sparse.passes.schedule_matmul import schedule_matmul
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.runtime import CompiledModel, Signature, TensorSpec, device_of, why_not_here
from tvm_sparse.vetting import Vetting
from tvm_sparse.weights import load_weights

# Arguments that transferred kernels are verified with are drawn from this seed.
VERIFICATION_SEED = 2020


@dataclass(frozen=True)
class PreparedModel:
    """A Relax module after all folding, and its convolutions in program order."""

    mod: tvm.IRModule
    layers: list[ConvLayer]


def compile(
    source: Any,
    example_inputs: Any = None,
    target: str | dict[str, Any] | Target | None = None,
    log: TuningLog | str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    strict_nonfinite: bool = False,
) -> CompiledModel:
    """Compile a model with the fastest verified kernels that `log` knows.

    Parameters
    ----------
    source, example_inputs, shapes
        See `importer.import_model`.
    target
        See `environment.resolve_target`.
    log
        A tuning log or its path; without one every convolution runs dense.
    strict_nonfinite
        Compute also the products with zero weights, so that NaN or infinity in an input reaches every output that it
        reaches in a dense convolution. Every convolution then runs dense.

    Raises
    ------
    ModelError
        The model cannot be used.
    UsageError
        The target is unknown, or a package that reads the model is missing.
    LogError
        The log cannot be read, or holds records of a newer tvm-sparse.
    BuildError
        TVM cannot compile it.
    """
    resolved = environment.resolve_target(target)
    log = TuningLog(log) if isinstance(log, (str, Path)) else log
    if log is not None:
        log.require_known_schema()
    prepared = prepare(source, example_inputs, shapes)
    decisions = decide(prepared.layers, resolved, log)
    if strict_nonfinite:
        decisions = [without_skipping(decision, resolved) for decision in decisions]
    return build(prepared, decisions, resolved)


def prepare(
    source: Any, example_inputs: Any = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> PreparedModel:
    """Import a model and fold what can be folded; see `importer.import_model` for arguments and errors."""
    # Phase 0: read. Weights first: they carry the names of the layers, and bad ones are named there.
    weights = load_weights(source)
    module = import_model(source, example_inputs, shapes)
    # Phase 1: constants, so that pruning masks are in the weights.
    module = fold_constants(module)
    # Phase 2: names, while weights still are the layer's own.
    module = name_convolutions(module, weights)
    check_constants(module)
    # Phase 3: what surrounds a convolution moves into it.
    module = fold_padding(module)
    module = fold_batch_norm(module)
    return PreparedModel(module, find_convolutions(module))


def build(prepared: PreparedModel, decisions: Sequence[Decision], target: Target) -> CompiledModel:
    """Compile `prepared` as `decisions` say; a transferred kernel that is not correct gives way to dense."""
    decisions = list(decisions)
    while True:
        kernels = _kernels(prepared.layers, decisions, target)
        executable = _compile(keep_nan(replace_convolutions(prepared.mod, kernels)), target)
        wrong = _verify(prepared.layers, decisions, kernels, executable, target)
        if not wrong:
            break
        # A wrong kernel gives way to the log's dense one, and that to the default, which needs no record.
        decisions = [
            to_dense(decision, target, wrong[decision.layer]) if decision.layer in wrong else decision
            for decision in decisions
        ]
    rows = [decision.to_json() for decision in decisions]
    return CompiledModel(executable, target, _signature(prepared.mod), rows)


def _kernels(layers: Sequence[ConvLayer], decisions: list[Decision], target: Target) -> dict[str, space.Kernel]:
    """Kernel of each layer. Replaces decisions, in place, whose trace does not fit by dense ones."""
    kernels: dict[str, space.Kernel] = {}
    made: dict[tuple[Any, ...], space.Kernel] = {}
    with Vetting() as vetting:
        for index, layer in enumerate(layers):
            while layer.name not in kernels:
                try:
                    kernels[layer.name] = _kernel(layer, decisions[index], target, made, vetting)
                except TvmSparseError as error:
                    # Without a record it is the default dense kernel, and nothing is left to fall to.
                    if decisions[index].record is None:
                        raise
                    decisions[index] = to_dense(decisions[index], target, str(error))
    return kernels


def _kernel(
    layer: ConvLayer, decision: Decision, target: Target, made: dict[tuple[Any, ...], space.Kernel], vetting: Vetting
) -> space.Kernel:
    """The kernel of `decision`; layers alike in everything share one of those `made`."""
    pattern = SparsityPattern.of(layer.weight)
    key = (layer.spec, pattern.value_digest, decision.schedule, json.dumps(decision.trace))
    if key not in made:
        found = space.find(decision.schedule, layer.spec, pattern, target)
        if decision.trace is not None:
            vetting.check(found, layer.spec, pattern, target, decision.trace)
        made[key] = space.apply_trace(found, layer.weight, decision.trace)
    return made[key]


def _compile(module: tvm.IRModule, target: Target) -> Any:
    try:
        return lowering.compiled(module, target, _pipeline(target))
    except (RuntimeError, ValueError, TypeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        hint = "report it with the model and what -v shows"
        raise BuildError("model", f"TVM cannot compile it: {lines[-1].strip()}", hint=hint) from error


def _pipeline(target: Target) -> tvm.transform.Pass:
    """TVM's own Relax pipeline for `target`, with one addition on CPUs."""
    if target.kind.name != "llvm":
        return relax.get_default_pipeline(target)
    return tvm.transform.Sequential(
        [
            *cpu_generic.library_dispatch_passes(target),
            *cpu_generic.legalize_passes(target),
            schedule_matmul,
            *cpu_generic.dataflow_lower_passes(target),
            *cpu_generic.finalize_passes(target),
        ]
    )


def _verify(
    layers: Sequence[ConvLayer],
    decisions: Sequence[Decision],
    kernels: Mapping[str, space.Kernel],
    executable: Any,
    target: Target,
) -> dict[str, str]:
    """Run each transferred kernel of the compiled model once; layer name -> what is wrong with it.

    What is run is the very function that the model calls.
    """
    transferred = [layer for layer, decision in zip(layers, decisions, strict=True) if decision.transferred]
    if not transferred:
        return {}
    obstacle = why_not_here(target)
    if obstacle:
        return {layer.name: f"it cannot be verified with this weight: {obstacle}" for layer in transferred}
    library, names = executable.jit(), function_names(layers, kernels)
    wrong: dict[str, str] = {}
    for layer in transferred:
        function = library.get_function(names[layer.name], query_imports=True)
        worst = _worst_error(function, layer, kernels[layer.name], device_of(target))
        if not worst <= 1:
            wrong[layer.name] = f"the transferred kernel is wrong by {worst:.3g} times the error bound"
    return wrong


def _worst_error(function: Any, layer: ConvLayer, kernel: space.Kernel, device: Any) -> float:
    """Largest error of a kernel as a fraction of its bound."""
    arguments = reference.random_arguments(layer.spec, VERIFICATION_SEED)
    if layer.bias is not None:
        arguments["bias"] = layer.bias
    expected = reference.reference(layer.spec, weight=layer.weight, **arguments)
    x, *epilogue = arguments.values()
    # An element that the kernel does not write stays NaN, which is infinitely wrong.
    y = tvm.runtime.tensor(np.full(layer.spec.output_shape, np.nan, np.float32), device)
    function(*[tvm.runtime.tensor(array, device) for array in (x, *kernel.constants, *epilogue)], y)
    device.sync()
    return expected.worst(y.numpy())


def _signature(module: tvm.IRModule) -> Signature:
    main = module["main"]
    single = isinstance(main.ret_ty, relax.TensorType)
    results = [main.ret_ty] if single else list(main.ret_ty.fields)
    inputs = [_tensor_spec(parameter.name, parameter.ty) for parameter in main.params]
    outputs = [_tensor_spec(f"output{index}", result) for index, result in enumerate(results)]
    return Signature(tuple(inputs), tuple(outputs), single)


def _tensor_spec(name: str, ty: Any) -> TensorSpec:
    return TensorSpec(name, tuple(int(size) for size in ty.shape.values), str(ty.dtype))
