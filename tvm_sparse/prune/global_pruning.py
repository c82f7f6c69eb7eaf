"""Pruning a whole model for speed: most where a weight costs time, least where it carries the loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import TWO_FOUR, structured_mask
from tvm_sparse.errors import UsageError
from tvm_sparse.prune import layer_times
from tvm_sparse.prune.allocation import Choices, allocate
from tvm_sparse.prune.layer_specs import layer_specs
from tvm_sparse.prune.layer_times import TimeOf
from tvm_sparse.prune.layers import as_convolution, groups_of, mask_of, prunable
from tvm_sparse.prune.methods import pattern as prune_layer
from tvm_sparse.prune.saliency import magnitude
from tvm_sparse.target.resolve import resolve_target

# Shares of zeros that a layer may have; the last also bounds what one layer loses for the others.
AMOUNTS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98)


@dataclass(frozen=True)
class LayerShare:
    """What `global_` made of one layer.

    `amount` is its share of zeros, `lost` the saliency that went, as `saliency` has it, and times are microseconds,
    estimated or from the given table, before and after.
    """

    layer: str
    pattern: str
    amount: float
    lost: float
    dense_time_us: float
    time_us: float


def global_(
    model: Any,
    example: Any,
    *,
    target: Any = "cuda",
    amount: float = 0.9,
    pattern: str = "vector16",
    saliency: Mapping[str, Any] | None = None,
    times: Mapping[str, Mapping[float, float]] | None = None,
    names: list[str] | None = None,
) -> list[LayerShare]:
    """Prune `amount` of all weights, each layer so far that the model gains most time for the saliency it loses.

    Sparsity alone would go where weights are many, which is in late layers on small maps, and gain little. Here a layer
    is pruned further the less saliency it loses for a microsecond. Masks are as in `pattern`, and only grow.

    Parameters
    ----------
    model, example
        A `torch.nn.Module` and the tensor, or tuple of tensors, that it is called with: times hold for its shape.
    target
        As for `compile`: ``cuda``, ``llvm``, ``cpu`` (the same) or JSON.
    amount
        Share of zeros in all pruned layers together, 0 to below 1, to one vector or slice a layer; of 2:4 to a layer.
    pattern
        As for `pattern`; where vectors or tiles do not divide a layer's output channels, the longest that do.
    saliency
        Layer -> tensor, as `magnitude` (the default) and `taylor` give it.
    times
        Layer -> density -> microseconds, measured; layers that it lacks are estimated. Estimates know of no kernels
        that skip vectors or slices, but for vectors on a CPU.
    names
        Layers to prune; by default every convolution and `Linear` but the first convolution.

    Raises
    ------
    UsageError
        An argument is none of these; the sentence names it.
    """
    layers, wanted = prunable(model, names), Structure.named(pattern)
    if not 0 <= amount < 1 or (pattern == "2:4" and amount > TWO_FOUR):
        raise UsageError("pruning", "amount is not usable", amount, "a number from 0 to below 1, for 2:4 up to 0.5")
    resolved = resolve_target("llvm" if target == "cpu" else target)
    scores = magnitude(model, list(layers)) if saliency is None else saliency
    _check(scores, layers)
    masks = {name: mask_of(each) for name, each in layers.items()}
    structures = {
        name: wanted.fitted(len(masks[name]) // groups_of(each), masks[name].shape[1]) for name, each in layers.items()
    }
    sizes = {name: each.size for name, each in masks.items()}
    clocks = _clocks(layer_specs(model, example, layers), sizes, resolved, times or {}, structures)
    grid = sorted({*AMOUNTS, amount}) if wanted.name != "2:4" else [0.0, TWO_FOUR]
    room_us = 4 / layer_times.bytes_a_us(resolved)
    choices = [_choices(layers[name], structures[name], scores[name], clocks[name], grid, room_us) for name in layers]
    shares = dict(zip(layers, allocate(choices, amount), strict=True))
    return [
        _pruned(name, layer, structures[name], shares[name], scores[name], clocks[name])
        for name, layer in layers.items()
    ]


def _check(scores: Mapping[str, Any], layers: dict[str, Any]) -> None:
    for name, layer in layers.items():
        if name not in scores:
            raise UsageError("pruning", "a layer has no saliency", name, hint="give saliency the same names")
        found, wanted = tuple(scores[name].shape), tuple(layer.weight.shape)
        if found != wanted:
            raise UsageError(f"layer {name}", "its saliency does not fit the weight", found, str(wanted))


def _choices(layer: Any, structure: Structure, score: Any, clock: TimeOf, grid: list[float], room_us: float) -> Choices:
    saliency, groups = as_convolution(layer, score) * mask_of(layer), groups_of(layer)
    # A zero takes no room at least; without it layers that gain no time would be all alike.
    gained = [clock(1.0) - clock(1 - each) + room_us * each * saliency.size for each in grid]
    return Choices(saliency.size, grid, [_lost(saliency, structure, each, groups) for each in grid], gained)


def _clocks(
    specs: dict[str, list[Any]],
    sizes: dict[str, int],
    target: Any,
    times: Mapping[str, Mapping[float, float]],
    structures: Mapping[str, Structure],
) -> dict[str, TimeOf]:
    for name in times:
        if name not in specs:
            raise UsageError("pruning", "times name a layer that is not pruned", name, ", ".join(specs))

    def clock(name: str) -> TimeOf:
        if name in times:
            return layer_times.measured(name, times[name])
        calls = [layer_times.estimated(spec, target, structures[name]) for spec in specs[name]]
        # Kernels of transposed convolutions have zeros where there are no weights.
        shares = [sizes[name] / math.prod(spec.weight_shape) for spec in specs[name]]
        return lambda density: sum(call(density * share) for call, share in zip(calls, shares, strict=True))

    return {name: clock(name) for name in specs}


def _lost(saliency: np.ndarray, structure: Structure, amount: float, groups: int) -> float:
    """What the layer's share of zeros costs, its channels as they are.

    ``-total * log(kept / total)``: about the saliency lost where that is little, and without bound where all is, as
    what layers behind each other pass on is about the product of the shares that they keep.
    """
    if amount == 0:
        return 0.0
    plain = Structure(structure.name.replace("p", ""), structure.vector, structure.tile, structure.slices)
    total = float(saliency.sum(dtype=np.float64))
    kept = float(saliency[structured_mask(saliency, plain, amount, groups)].sum(dtype=np.float64))
    return -total * math.log(kept / total) if kept > 0 else total * math.log(1 + saliency.size)


def _pruned(name: str, layer: Any, structure: Structure, share: float, score: Any, clock: TimeOf) -> LayerShare:
    before = as_convolution(layer, score) * mask_of(layer)
    if share > 0:
        prune_layer(layer, structure.name, TWO_FOUR if structure.name == "2:4" else share, saliency=score)
    mask = mask_of(layer)
    lost = float(before[~mask].sum(dtype=np.float64))
    density = float(mask.mean())
    return LayerShare(name, structure.name, 1 - density, lost, clock(1.0), clock(density))
