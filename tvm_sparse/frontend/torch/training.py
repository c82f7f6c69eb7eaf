"""Refuses torch models of which a part is in training mode, by the part's name."""

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


def require_evaluation(module: Any) -> None:
    """Raise ModelError where a `torch.nn.Module`, or one in it that behaves otherwise in training, is not in eval mode.

    Modules of torch to which training is all the same, such as a new last layer, may be in either mode.
    """
    found = [(name, each) for name, each in module.named_modules() if each.training]
    if module.training:
        problem, training = "the outermost module is in training mode", type(module).__name__
    else:
        names = [f"{name} ({type(each).__name__})" for name, each in found if _has_modes(each)]
        if not names:
            return
        problem, training = "a submodule is in training mode", ", ".join(names[:3])
        training += f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise ModelError("model", problem, training, hint="call eval() of the module that you pass")


def _has_modes(module: Any) -> bool:
    """Whether a module may behave otherwise in training: anything that is not torch's own may."""
    from torch import nn

    of_torch = (
        nn.modules.batchnorm._NormBase,
        nn.modules.dropout._DropoutNd,
        nn.MultiheadAttention,
        nn.RNNBase,
        nn.RReLU,
    )
    return not type(module).__module__.startswith("torch.") or isinstance(module, of_torch)


def require_evaluation_graph(where: str, program: Any) -> None:
    """Raise ModelError where an operator of a `torch.export.ExportedProgram` behaves as in training."""
    for node in program.graph.nodes:
        position = _TRAINING_ARGUMENT.get(str(node.target))
        if position is not None and len(node.args) > position and node.args[position]:
            hint = "call model.eval() before torch.export.export"
            raise ModelError(where, f"{owner(node)} was exported in training mode", hint=hint)
