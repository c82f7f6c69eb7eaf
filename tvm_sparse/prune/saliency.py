"""What the loss would suffer without a weight: its magnitude, or a first-order Taylor expansion."""

from collections.abc import Callable
from typing import Any

from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.optional_imports import require
from tvm_sparse.prune.layers import evaluating, prunable, weight_of


def magnitude(model: Any, names: list[str] | None = None) -> dict[str, Any]:
    """Each weight's share of the sum of its layer's magnitudes, by layer: float32 tensors like the weights.

    Shares compare layers whose weights differ in scale. `names` are the layers, by default all that `global_` prunes.
    """
    weights = {name: weight_of(layer).float().abs() for name, layer in prunable(model, names).items()}
    return {name: each / each.sum().clamp(min=1e-30) for name, each in weights.items()}


def taylor(
    model: Any,
    data: Any,
    *,
    names: list[str] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
) -> dict[str, Any]:
    """``|weight * gradient|``, the mean over batches, by layer: float32, like the weights (Molchanov et al. 2019).

    The model is in eval mode meanwhile, and neither it nor its ``.grad`` changes.

    Parameters
    ----------
    data
        Batches (x, y).
    loss
        Of outputs and y; by default cross-entropy.

    Raises
    ------
    UsageError
        There are no batches, a name is of no layer, or the loss does not depend on one.
    """
    torch = require("torch", "torch")
    loss = loss or torch.nn.functional.cross_entropy
    layers = prunable(model, names)
    # What is learned is behind the mask of a pruned layer.
    leaves = [getattr(layer, "weight_orig", layer.weight) for layer in layers.values()]
    # In half precision most of these products would be zero.
    sums = [torch.zeros_like(leaf, dtype=torch.float32) for leaf in leaves]
    batches = 0
    with evaluating(model):
        for x, y in data:
            batches += 1
            gradients = torch.autograd.grad(loss(model(x), y), leaves, allow_unused=True)
            for name, each, leaf, gradient in zip(layers, sums, leaves, gradients, strict=True):
                if gradient is None:
                    raise UsageError(f"layer {name}", "the loss does not depend on it", hint="leave it out of names")
                each.add_((leaf.detach().float() * gradient.float()).abs())
    if not batches:
        raise UsageError("saliency", "there are no batches", hint="give (x, y) pairs")
    return {name: each / batches for name, each in zip(layers, sums, strict=True)}
