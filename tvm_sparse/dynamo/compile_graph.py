"""The steps from a graph and the arguments of a call to compiled code, and what stands in the way of it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm.target import Target

from tvm_sparse.dynamo import graph
from tvm_sparse.errors import ModelError, UsageError
from tvm_sparse.frontend.torch.import_program import export_module
from tvm_sparse.frontend.torch.rules.training import require_evaluation_graph
from tvm_sparse.runtime.multi_shape_model import AnyModel
from tvm_sparse.target.resolve import resolve_target

# What runs a graph: all of its arguments to all of its results.
Run = Callable[[Sequence[Any]], Sequence[Any]]
# Target kind of the devices of torch that there are schedules for.
_KINDS = {"cpu": "llvm", "cuda": "cuda"}


def is_sparse(constants: Sequence[torch.Tensor], density: float) -> bool:
    """Whether one of the weights, or of the masks, has no more than this share of non-zeros."""
    return any(
        tensor.numel() and int(torch.count_nonzero(tensor)) <= density * tensor.numel()
        for tensor in constants
        # Convolutions and products of matrices have weights of two dimensions and more.
        if tensor.ndim >= 2 and tensor.device.type in _KINDS
    )


def check(gm: torch.fx.GraphModule, constants: Sequence[torch.Tensor]) -> None:
    """Raise ModelError where results must be such as compiled code does not give, or weights cannot be watched."""
    if any(tensor.is_inference() for tensor in constants):
        aside = "make the model outside of torch.inference_mode()"
        raise ModelError("torch.compile", "torch counts no changes of inference tensors, as parameters are", hint=aside)
    if graph.wants_gradients(gm):
        no_gradients = "call the model under torch.no_grad() or torch.inference_mode()"
        raise ModelError("torch.compile", "gradients are wanted, and this is for inference only", hint=no_gradients)
    if any(torch.is_autocast_enabled(kind) for kind in _KINDS):
        raise ModelError("torch.compile", "autocast is on, and only float32 is computed here", hint="turn it off")
    if graph.shares_memory(gm):
        copy = "return a copy"
        raise ModelError("torch.compile", "a result shares its memory with another one or with an input", hint=copy)


def target_for(tensors: Sequence[torch.Tensor], given: Any) -> Target:
    """The target for the device that all tensors are on.

    ModelError where there is no code for that device. UsageError where the target `given` in the options does not run
    there.
    """
    devices = sorted({str(tensor.device) for tensor in tensors})
    kind = _KINDS.get(devices[0].removesuffix(":0")) if len(devices) == 1 else None
    if kind is None:
        found, allowed = ", ".join(devices), "cpu or cuda:0"
        raise ModelError(
            "torch.compile", "there is no code for where the tensors are", found, allowed, "move them there"
        )
    target = resolve_target(kind if given is None else given)
    if target.kind.name != kind:
        problem = f"target {target.kind.name} does not run where the tensors are"
        hint = "move the model and its inputs, or leave the option target out"
        raise UsageError("torch.compile", problem, devices[0], hint=hint)
    return target


def exported(module: graph.GraphWithWeights, examples: Sequence[torch.Tensor]) -> Any:
    """The `torch.export.ExportedProgram` of a graph; ModelError where it does more than compute its results."""
    program = export_module(module, examples)
    require_evaluation_graph("torch.compile", program)
    if graph.writes_to_arguments(program.graph):
        problem = "the model writes to its inputs or its state"
        raise ModelError("torch.compile", problem, hint="let it write to a copy")
    return program


def runner(model: AnyModel, inputs: graph.GraphInputs, returned: Sequence[Any]) -> Run:
    """A function that runs `model` in the place of a graph, whose results are `returned`, tensors as `graph.TENSOR`."""

    def run(arguments: Sequence[Any]) -> Sequence[Any]:
        found = model(*[arguments[i] for i in inputs.tensors])
        tensors = iter([found] if model.signature.single else found)
        return [next(tensors) if value is graph.TENSOR else value for value in returned]

    return run
