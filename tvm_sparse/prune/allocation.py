"""How sparse each layer should be: a knapsack over steps of sparsity, by saliency lost for microseconds gained."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Choices:
    """What one layer may become: for each of `amounts`, ascending from 0, the saliency lost and microseconds gained."""

    size: int
    amounts: Sequence[float]
    lost: Sequence[float]
    gained_us: Sequence[float]


def allocate(layers: Sequence[Choices], amount: float) -> list[float]:
    """The share of zeros of each layer, with `amount` of all weights zero.

    Greedy: the step that loses least for each microsecond that it gains comes first, over all layers. A layer's steps
    go along the lower convex hull of its choices, so that what comes later never gains more for its loss. The last step
    goes as far as it must. That is the optimum but for that step (Dantzig 1957).
    """
    at = [0] * len(layers)
    steps = [step for each, _ in enumerate(layers) if (step := _next(layers, at, each)) is not None]
    heapq.heapify(steps)
    missing = amount * sum(layer.size for layer in layers)
    found = [0.0] * len(layers)
    while steps and missing > 0:
        _, each, to = heapq.heappop(steps)
        layer = layers[each]
        zeros = (layer.amounts[to] - found[each]) * layer.size
        found[each] += min(missing, zeros) / layer.size
        missing -= zeros
        at[each] = to
        if (step := _next(layers, at, each)) is not None:
            heapq.heappush(steps, step)
    return found


def _next(layers: Sequence[Choices], at: list[int], each: int) -> tuple[float, int, int] | None:
    """The step of a layer that loses least for what it gains: ratio, layer, index of its choice."""
    layer, here = layers[each], at[each]
    lost, gained = np.asarray(layer.lost[here:]), np.asarray(layer.gained_us[here:])
    if len(lost) < 2:
        return None
    ratios = (lost[1:] - lost[0]) / np.maximum(gained[1:] - gained[0], 1e-12)
    # Of equal ratios the longest step.
    step = len(ratios) - 1 - int(np.argmin(ratios[::-1]))
    return float(ratios[step]), each, here + 1 + step
