"""Pruning one layer to a pattern.

Each function sets a mask of `torch.nn.utils.prune` on the layer's weight: `prune.remove` makes it permanent, state
dicts carry it, and masks only grow: what is zero stays so when the layer is pruned again, for which `amount` is the
share of zeros *afterwards*. Go on with the pattern that was begun with; others would not be full.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from tvm_sparse.conv.structure import FOUR, OF_FOURS, Structure
from tvm_sparse.conv.structured_mask import TWO_FOUR, structured_mask
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.optional_imports import require
from tvm_sparse.prune.layers import as_convolution, as_weight, groups_of, mask_of, weight_of
from tvm_sparse.prune.permutation import search_order


def pattern(
    layer: Any, name: str, amount: float, *, saliency: Any = None, slice_amount: float | None = None, seed: int = 0
) -> Any:
    """Prune `layer` to the pattern called `name`, and return it.

    Parameters
    ----------
    layer
        A convolution of lines, maps or volumes, transposed or not, or a `Linear`, which is a 1x1 convolution.
    name
        ``unstructured``, ``vector16``, ``vector16p``, ``slice64c``, ``slice64cr``, ``slice64cr+vector8``, ``2:4``,
        ``channels4`` (four input channels at one tap), ``filters`` or ``channels``.
    amount
        Share of weights that are zero afterwards, 0 to below 1, to one vector, slice, filter or channel; one of them
        stays at least.
    saliency
        What the loss would suffer without each weight, a tensor like the weight; by default the magnitudes.
    slice_amount
        Of slices over vectors: the share of slices that are zero.
    seed
        Of the permutation search.

    Raises
    ------
    UsageError
        The layer, the name or an amount is none of these, or vectors or tiles do not divide the output channels.
    """
    structure = _checked(layer, name, amount, slice_amount)
    groups, before = groups_of(layer), mask_of(layer)
    if saliency is None:
        saliency = weight_of(layer).abs()
    elif tuple(saliency.shape) != tuple(layer.weight.shape):
        found, wanted = tuple(saliency.shape), tuple(layer.weight.shape)
        raise UsageError("pruning", "saliency does not fit the weight", found, str(wanted))
    values = as_convolution(layer, saliency) * before
    if structure.is_permuted:
        structure = replace(structure, order=_order(values, before, structure, amount, groups, seed))
    mask = structured_mask(values, structure, amount, groups, slice_amount) & before
    tensor = layer.weight.new_tensor(as_weight(layer, mask))
    require("torch.nn.utils.prune", "torch").custom_from_mask(layer, "weight", tensor)
    return layer


def _checked(layer: Any, name: str, amount: float, slice_amount: float | None) -> Structure:
    structure, shape = Structure.named(name), as_convolution(layer, weight_of(layer)).shape
    for what, share in (("amount", amount), ("slice_amount", slice_amount)):
        if share is not None and not 0 <= share < 1:
            raise UsageError("pruning", f"{what} is not usable", share, "a number from 0 to below 1")
    if slice_amount is not None and slice_amount > amount:
        raise UsageError("pruning", "slice_amount is not usable", slice_amount, f"up to amount, {amount:g}")
    if name == "2:4" and amount != TWO_FOUR:
        raise UsageError("pruning", "2:4 has one amount", amount, f"{TWO_FOUR}")
    if name in OF_FOURS and shape[1] % FOUR:
        raise UsageError("pruning", f"{name} needs input channels in fours", shape[1], "a multiple of 4")
    channels = shape[0] // groups_of(layer)
    if structure.fitted(channels) != structure:
        hint = f"take {structure.fitted(channels).name}"
        raise UsageError("pruning", f"{name} does not divide the output channels of a group", channels, hint=hint)
    return structure


def _order(
    saliency: np.ndarray, before: np.ndarray, structure: Structure, amount: float, groups: int, seed: int
) -> tuple[int, ...]:
    """The order of an earlier pruning, as masks only grow, else that which a search finds."""
    earlier = Structure.of(before, groups)
    if earlier.order is not None and (earlier.vector, earlier.tile) == (structure.vector, structure.tile):
        return earlier.order
    return search_order(saliency, structure, amount, groups, seed)


def unstructured(layer: Any, amount: float, *, saliency: Any = None) -> Any:
    """Prune the weights of least saliency, wherever they are (Han et al. 2015). See `pattern`."""
    return pattern(layer, "unstructured", amount, saliency=saliency)


def vector(
    layer: Any, v: int = 16, amount: float = 0.9, *, permute: bool = False, saliency: Any = None, seed: int = 0
) -> Any:
    """Prune lock-step vectors: `v` output channels share each non-zero position (Tan et al. 2022). See `pattern`.

    With `permute` a search chooses which output channels form a vector (Pool and Yu 2021).
    """
    return pattern(layer, f"vector{v}{'p' if permute else ''}", amount, saliency=saliency, seed=seed)


def tile_slices(
    layer: Any,
    tile: int = 64,
    kind: str = "c",
    amount: float = 0.9,
    *,
    v: int = 1,
    slice_amount: float | None = None,
    saliency: Any = None,
) -> Any:
    """Prune slices of what a thread block stages for `tile` output channels (Choi and Yang 2021). See `pattern`.

    `kind` is ``c``, an input channel, or ``cr``, one row of its taps. With `v` above 1, vectors of `v` channels are
    pruned within the slices that are left; `slice_amount` is then the share of slices that are zero.
    """
    inner = f"+vector{v}" if v > 1 else ""
    return pattern(layer, f"slice{tile}{kind}{inner}", amount, saliency=saliency, slice_amount=slice_amount)


def two_four(layer: Any, *, saliency: Any = None) -> Any:
    """Prune two of every four input channels at each position (Mishra et al. 2021). See `pattern`."""
    return pattern(layer, "2:4", TWO_FOUR, saliency=saliency)


def filters(layer: Any, amount: float, *, saliency: Any = None) -> Any:
    """Prune whole filters, the output channels of least saliency (Li et al. 2017). See `pattern`."""
    return pattern(layer, "filters", amount, saliency=saliency)


def channels(layer: Any, amount: float, *, saliency: Any = None) -> Any:
    """Prune whole input channels, of all filters of a group alike (He et al. 2017). See `pattern`."""
    return pattern(layer, "channels", amount, saliency=saliency)
