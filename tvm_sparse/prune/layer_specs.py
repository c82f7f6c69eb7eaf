"""The convolutions that a torch model computes for an example, by the layers that own the weights."""

from typing import Any

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.optional_imports import require
from tvm_sparse.frontend.passes.ranks.convolution import Convolution
from tvm_sparse.prune.layers import evaluating, is_transposed, weight_of


def layer_specs(model: Any, example: Any, layers: dict[str, Any]) -> dict[str, list[ConvSpec]]:
    """For each of `layers`, by name, the convolutions of its calls in ``model(example)``; a layer may have several.

    Raises
    ------
    UsageError
        A layer is not called.
    """
    torch = require("torch", "torch")
    found: dict[str, list[ConvSpec]] = {name: [] for name in layers}

    def noting(name: str) -> Any:
        return lambda layer, inputs: found[name].append(_spec(layer, inputs[0].shape))

    hooks = [layer.register_forward_pre_hook(noting(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad(), evaluating(model):
            model(*(example if isinstance(example, tuple) else (example,)))
    finally:
        for hook in hooks:
            hook.remove()
    for name, specs in found.items():
        if not specs:
            raise UsageError(f"layer {name}", "the example does not reach it", hint="leave it out of names")
    return found


def _spec(layer: Any, shape: Any) -> ConvSpec:
    weight = weight_of(layer)
    if weight.ndim == 2:
        k, c = weight.shape
        return ConvSpec(n=shape.numel() // c, c=c, h=1, w=1, k=k, r=1, s=1)
    rank = weight.ndim - 2
    n, _, *sizes = shape if len(shape) == 2 + rank else (1, *shape)
    if is_transposed(layer):
        padding, added = [*layer.padding, *layer.padding], layer.output_padding
    else:
        # (left, right, top, bottom), also where padding is "same".
        twice = layer._reversed_padding_repeated_twice
        padding, added = [*twice[-2::-2], *twice[::-2]], None
    geometry = (sizes, layer.stride, padding, layer.dilation, layer.groups, added)
    return Convolution.of(weight.float().cpu().numpy(), *geometry).spec(n)
