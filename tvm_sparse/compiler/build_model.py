"""Model -> compiled model: import, fold, choose a kernel for each convolution, replace, compile, verify."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu_generic
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.compiler.keep_nan import keep_nan
from tvm_sparse.compiler.kernel_selection import Decision, all_dense, decide, to_dense
from tvm_sparse.compiler.plan_scratch import plan_scratch
from tvm_sparse.compiler.replace_convolutions import replace_convolutions
from tvm_sparse.compiler.schedule_matmul import schedule_matmul
from tvm_sparse.compiler.verify import verify
from tvm_sparse.errors import BuildError, TvmSparseError, last_line
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.safe_replay import SafeReplay
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.schedules import find_space
from tvm_sparse.scheduling.kernel import Kernel, kernel_of
from tvm_sparse.target.resolve import resolve_target


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
        See `ModelSource`.
    target
        See `resolve_target`.
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
    resolved = resolve_target(target)
    log = TuningLog(log) if isinstance(log, (str, Path)) else log
    if log is not None:
        log.require_known_schema()
    prepared = prepare(source, example_inputs, shapes)
    decisions = decide(prepared.layers, resolved, log)
    if strict_nonfinite:
        decisions = all_dense(decisions, resolved, "strict_nonfinite asks for the products with zeros")
    return build(prepared, decisions, resolved)


def build(prepared: PreparedModel, decisions: Sequence[Decision], target: Target) -> CompiledModel:
    """Compile `prepared` as `decisions` say; a transferred kernel that is not correct gives way to dense."""
    decisions = list(decisions)
    while True:
        kernels = kernels_of(prepared.layers, decisions, target)
        module = keep_nan(replace_convolutions(prepared.mod, kernels))
        executable = _compile(plan_scratch(module) if target.kind.name == "cuda" else module, target)
        wrong = verify(prepared.layers, decisions, kernels, executable, target)
        if not wrong:
            break
        # A wrong kernel gives way to the log's dense one, and that to the default, which needs no record.
        decisions = [
            to_dense(decision, target, wrong[decision.layer]) if decision.layer in wrong else decision
            for decision in decisions
        ]
    rows = [decision.to_json() for decision in decisions]
    return CompiledModel(executable, target, _signature(prepared.mod), rows)


def kernels_of(layers: Sequence[ConvLayer], decisions: list[Decision], target: Target) -> dict[str, Kernel]:
    """Kernel of each layer. Replaces decisions, in place, which do not fit by dense ones."""
    kernels: dict[str, Kernel] = {}
    made: dict[tuple[Any, ...], Kernel] = {}
    with SafeReplay() as replay:
        for index, layer in enumerate(layers):
            while layer.name not in kernels:
                try:
                    kernels[layer.name] = _kernel(layer, decisions[index], target, made, replay)
                except TvmSparseError as error:
                    # Without a record it is the default dense kernel, and nothing is left to fall to.
                    if decisions[index].record is None:
                        raise
                    decisions[index] = to_dense(decisions[index], target, str(error))
    return kernels


def _kernel(
    layer: ConvLayer, decision: Decision, target: Target, made: dict[tuple[Any, ...], Kernel], replay: SafeReplay
) -> Kernel:
    """The kernel of `decision`; layers alike in everything share one of those `made`."""
    pattern = layer.pattern
    key = (layer.spec, pattern.value_digest, decision.schedule, json.dumps(decision.chosen, sort_keys=True))
    if key not in made:
        space = find_space(decision.schedule, layer.spec, pattern, target)
        schedule = replay.scheduled(space, layer.spec, pattern, target, decision.chosen)
        made[key] = kernel_of(space, schedule, layer.weight)
    return made[key]


def _compile(module: tvm.IRModule, target: Target) -> Any:
    try:
        return lowering.compiled(module, target, _pipeline(target))
    except (RuntimeError, ValueError, TypeError) as error:
        hint = "report it with the model and what -v shows"
        raise BuildError("model", f"TVM cannot compile it: {last_line(error)}", hint=hint) from error


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


def _signature(module: tvm.IRModule) -> Signature:
    main = module["main"]
    single = isinstance(main.ret_ty, relax.TensorType)
    results = [main.ret_ty] if single else list(main.ret_ty.fields)
    inputs = [_tensor_spec(parameter.name, parameter.ty) for parameter in main.params]
    outputs = [_tensor_spec(f"output{index}", result) for index, result in enumerate(results)]
    return Signature(tuple(inputs), tuple(outputs), single)


def _tensor_spec(name: str, ty: Any) -> TensorSpec:
    return TensorSpec(name, tuple(int(size) for size in ty.shape.values), str(ty.dtype))
