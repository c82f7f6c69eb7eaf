"""Refuses torch models of which a part is in training mode, by the part's name."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.torch.graph import owner

# Operators that behave otherwise in training -> position of the argument that says so.
_TRAINING_ARGUMENT = {
    "aten.alpha_dropout.default": 2,
    "aten.batch_norm.default": 5,
    "aten.dropout.default": 2,
    "aten.dropout_.default": 2,
    "aten.feature_alpha_dropout.default": 2,
    "aten.feature_dropout.default": 2,
    "aten.native_batch_norm.default": 5,
    "aten.native_dropout.default": 2,
    "aten.rrelu.default": 3,
    "aten.rrelu_.default": 3,
}


def exported_for_evaluation(module: Any, export: Callable[[], Any]) -> Any:
    """The `torch.export.ExportedProgram` that `export` makes of a `torch.nn.Module`, which is not changed.

    ModelError where a part of the module is in training mode, and the program would be another one in evaluation.
    """
    training = [each for each in module.modules() if each.training]
    if any(map(_has_modes, training)):
        raise _error(module)
    if all(map(_is_of_torch, training)):
        return export()
    with _evaluation(training):
        program = export()
    try:
        is_same = _are_same(export(), program)
    except ModelError:
        # What traces in evaluation alone depends on the mode.
        is_same = False
    if not is_same:
        raise _error(module)
    return program


def _error(module: Any) -> ModelError:
    hint = "call eval() of the module that you pass"
    if module.training:
        return ModelError("model", "the outermost module is in training mode", type(module).__name__, hint=hint)
    names = [
        f"{name} ({type(each).__name__})"
        for name, each in module.named_modules()
        if each.training and (_has_modes(each) or not _is_of_torch(each))
    ]
    found = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return ModelError("model", "a submodule is in training mode", found, hint=hint)


def _is_of_torch(module: Any) -> bool:
    """Whether it is known what training changes in it, as of others only their programs tell."""
    return type(module).__module__.startswith("torch.")


def _has_modes(module: Any) -> bool:
    """Whether a module of torch, or of a class made of one, behaves otherwise in training."""
    from torch import nn

    with_modes = (
        nn.modules.batchnorm._NormBase,
        nn.modules.dropout._DropoutNd,
        nn.MultiheadAttention,
        nn.RNNBase,
        nn.RReLU,
    )
    return isinstance(module, with_modes)


@contextlib.contextmanager
def _evaluation(modules: Sequence[Any]) -> Iterator[None]:
    """Modules in training mode are in evaluation mode, without their `train` being called, which may do more."""
    for each in modules:
        each.training = False
    try:
        yield
    finally:
        for each in modules:
            each.training = True


def _are_same(program: Any, other: Any) -> bool:
    """Whether two programs of a module have the same operators and constants."""
    import torch

    constants, others = program.constants, other.constants
    return (
        str(program.graph) == str(other.graph)
        and constants.keys() == others.keys()
        and all(torch.equal(each, others[name]) for name, each in constants.items())
    )


def require_evaluation_graph(where: str, program: Any) -> None:
    """Raise ModelError where an operator of a `torch.export.ExportedProgram` behaves as in training."""
    for node in program.graph.nodes:
        position = _TRAINING_ARGUMENT.get(str(node.target))
        if position is not None and len(node.args) > position and node.args[position] and not _keeps_nothing(node):
            hint = "call model.eval() before torch.export.export"
            raise ModelError(where, f"{owner(node)} was exported in training mode", hint=hint)


def _keeps_nothing(node: Any) -> bool:
    """Whether it is a batch norm without running statistics, which takes those of its input in evaluation too.

    So weights are standardised (timm's ScaledStdConv2d).
    """
    return "batch_norm" in str(node.target) and node.args[3] is None
