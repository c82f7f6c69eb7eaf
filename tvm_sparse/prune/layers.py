"""The layers of a torch model that can be pruned, and their weights as those of convolutions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.optional_imports import require

# Classes of torch.nn whose objects can be pruned.
_CLASSES = tuple(f"Conv{kind}{rank}d" for kind in ("", "Transpose") for rank in (1, 2, 3))
PRUNABLE = ", ".join((*_CLASSES, "Linear"))


def is_prunable(module: Any) -> bool:
    """Whether a module is a convolution of any kind or a `Linear`, which is a 1x1 convolution of one pixel."""
    nn = require("torch", "torch").nn
    return isinstance(module, (*(getattr(nn, name) for name in _CLASSES), nn.Linear))


def prunable(model: Any, names: list[str] | None = None) -> dict[str, Any]:
    """Layers of a model by name, those of `names` or all but the first convolution, where accuracy depends on each.

    Raises
    ------
    UsageError
        A name is of no convolution or `Linear` of the model, or there is no such layer.
    """
    found = {name: each for name, each in model.named_modules() if is_prunable(each)}
    if names is not None:
        for name in names:
            if name not in found:
                raise UsageError("pruning", "no such layer", name, ", ".join(found) or "none")
        return {name: found[name] for name in names}
    first = next((name for name, each in found.items() if weight_of(each).ndim > 2), None)
    chosen = {name: each for name, each in found.items() if name != first}
    if not chosen:
        raise UsageError("pruning", "the model has no layer to prune", hint=f"name some of its layers: {PRUNABLE}")
    return chosen


def weight_of(layer: Any) -> Any:
    """The weight of a layer as it is computed with, a tensor as torch has it.

    Raises
    ------
    UsageError
        It is no convolution or `Linear`.
    """
    if not is_prunable(layer):
        raise UsageError("pruning", "this layer cannot be pruned", type(layer).__name__, PRUNABLE)
    return layer.weight.detach()


def groups_of(layer: Any) -> int:
    """Groups of a convolution; 1 of a `Linear`."""
    return int(getattr(layer, "groups", 1))


def as_convolution(layer: Any, tensor: Any) -> np.ndarray:
    """A tensor like a layer's weight as an array (K, C / groups, R, S) float32.

    That of a `Linear` is (K, C, 1, 1). Taps in depth are more rows, and a line's are one.
    """
    array = _swapped(layer, tensor.detach().float().cpu().numpy())
    k, c, *taps = array.shape
    return array.reshape(k, c, -1, (1, *taps)[-1])


def as_weight(layer: Any, array: np.ndarray) -> np.ndarray:
    """An array as `as_convolution` gives it, like the layer's weight again."""
    shape = tuple(layer.weight.shape)
    if not is_transposed(layer):
        return array.reshape(shape)
    c, k, *taps = shape
    return _swapped(layer, array.reshape(k * groups_of(layer), c // groups_of(layer), *taps))


def is_transposed(layer: Any) -> bool:
    """Whether a weight is (C, K / groups, ...)."""
    return bool(getattr(layer, "transposed", False))


def _swapped(layer: Any, array: np.ndarray) -> np.ndarray:
    """A transposed convolution's (C, K / groups, ...) as (K, C / groups, ...), and the other way round."""
    if not is_transposed(layer):
        return array
    (rows, columns, *taps), groups = array.shape, groups_of(layer)
    split = array.reshape(groups, rows // groups, columns, *taps)
    return split.swapaxes(1, 2).reshape(groups * columns, rows // groups, *taps)


def mask_of(layer: Any) -> np.ndarray:
    """The mask (K, C / groups, R, S) bool that pruning has given a layer so far; True everywhere where it has not."""
    mask = getattr(layer, "weight_mask", None)
    return as_convolution(layer, weight_of(layer) * 0 + 1 if mask is None else mask) != 0


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
