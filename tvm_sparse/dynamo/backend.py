"""``torch.compile(model, backend="tvm_sparse")``: what torch calls for each graph that it captures of a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm_sparse.dynamo.graph import GraphInputs
from tvm_sparse.dynamo.options import Options
from tvm_sparse.dynamo.piece import Piece


def backend(
    gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """A function that computes what the `torch.fx.GraphModule` computes; `Options` has the options.

    Nothing is compiled yet: that is done at the first call, for the shapes and the weights that it brings.

    Raises
    ------
    UsageError
        An option is unknown or has no usable value, or `mode` is given.
    """
    chosen = Options.of(options or {}, mode)
    inputs = GraphInputs.of(gm)
    # Convolutions and products of matrices have weights of two dimensions and more.
    if not any(getattr(example_inputs[index], "ndim", 0) >= 2 for index in inputs.constants):
        return gm.forward
    return Piece(gm, inputs, chosen)
