"""What the loss would suffer without a weight: its magnitude, or a first-order Taylor expansion."""

from collections.abc import Callable
from typing import Any

from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.optional_imports import require
from tvm_sparse.prune.layers import prunable, weight_of


def magnitude(model: Any, names: list[str] | None = None) -> dict[str, Any]:
    """Each weight's share of the sum of its layer's magnitudes, by layer: tensors like the weights.

    As a share, because layers differ in scale and a batch norm behind them makes that good. `names` are the layers, by
    default all that `global_` prunes.
    """
    weights = {name: weight_of(layer).abs() for name, layer in prunable(model, names).items()}
    return {name: each / each.sum().clamp(min=1e-30) for name, each in weights.items()}


def taylor(
    model: Any,
    data: Any,
    names: list[str] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
) -> dict[str, Any]:
    """``|weight * gradient|``, the mean over batches, by layer: tensors like the weights (Molchanov et al. 2019).

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
        There are no batches, or a name is of no layer.
    """
    torch = require("torch", "torch")
    loss = loss or torch.nn.functional.cross_entropy
    layers = prunable(model, names)
    # What is learned is behind the mask of a pruned layer.
    leaves = [getattr(layer, "weight_orig", layer.weight) for layer in layers.values()]
    sums = [torch.zeros_like(leaf) for leaf in leaves]
    batches, was_training = 0, model.training
    model.eval()
    for x, y in data:
        batches += 1
        gradients = torch.autograd.grad(loss(model(x), y), leaves)
        for each, leaf, gradient in zip(sums, leaves, gradients, strict=True):
            each.add_((leaf.detach() * gradient).abs())
    model.train(was_training)
    if not batches:
        raise UsageError("saliency", "there are no batches", hint="give (x, y) pairs")
    return {name: each / batches for name, each in zip(layers, sums, strict=True)}
