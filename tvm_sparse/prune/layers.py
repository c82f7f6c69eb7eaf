"""The layers of a torch model that can be pruned, and their weights as those of convolutions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.optional_imports import require


def is_prunable(module: Any) -> bool:
    """Whether a module is a `Conv2d` or a `Linear`, which is a 1x1 convolution of one pixel."""
    nn = require("torch", "torch").nn
    return isinstance(module, (nn.Conv2d, nn.Linear))


def prunable(model: Any, names: list[str] | None = None) -> dict[str, Any]:
    """Layers of a model by name, those of `names` or all but the first convolution, where accuracy depends on each.

    Raises
    ------
    UsageError
        A name is of no `Conv2d` or `Linear` of the model, or there is no such layer.
    """
    found = {name: each for name, each in model.named_modules() if is_prunable(each)}
    if names is not None:
        for name in names:
            if name not in found:
                raise UsageError("pruning", "no such layer", name, ", ".join(found) or "none")
        return {name: found[name] for name in names}
    first = next((name for name, each in found.items() if weight_of(each).ndim == 4), None)
    chosen = {name: each for name, each in found.items() if name != first}
    if not chosen:
        raise UsageError("pruning", "the model has no layer to prune", hint="name some of its Conv2d or Linear layers")
    return chosen


def weight_of(layer: Any) -> Any:
    """The weight of a layer as it is computed with: a tensor (K, C / groups, R, S), of a `Linear` (K, C).

    Raises
    ------
    UsageError
        It is no `Conv2d` or `Linear`.
    """
    if not is_prunable(layer):
        raise UsageError("pruning", "this layer cannot be pruned", type(layer).__name__, "Conv2d, Linear")
    return layer.weight.detach()


def groups_of(layer: Any) -> int:
    """Groups of a convolution; 1 of a `Linear`."""
    return int(getattr(layer, "groups", 1))


def as_convolution(tensor: Any) -> np.ndarray:
    """A tensor like a layer's weight as an array (K, C / groups, R, S) float32; that of a `Linear` is (K, C, 1, 1)."""
    array = tensor.detach().float().cpu().numpy()
    return array if array.ndim == 4 else array[:, :, None, None]


def mask_of(layer: Any) -> np.ndarray:
    """The mask (K, C / groups, R, S) bool that pruning has given a layer so far; True everywhere where it has not."""
    mask = getattr(layer, "weight_mask", None)
    return as_convolution(weight_of(layer) * 0 + 1 if mask is None else mask) != 0


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """`model` in eval mode; afterwards each part is in its own mode again, such as a batch norm that was frozen."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():
            module.training = is_training
