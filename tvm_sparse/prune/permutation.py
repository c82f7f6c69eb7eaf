"""Which output channels to put side by side, so that vectors or tiles keep more saliency (Pool and Yu 2021).

Greedy, then swaps. What vectors keep, the sum of the largest units, is for a fixed threshold t the sum of what each
unit has above t, plus a constant. So only the two blocks count between which a swap moves channels.
"""

import numpy as np

from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask, unit_saliency, unit_shape

# Passes over all channels, and partners that each is offered in one.
SWEEPS, PARTNERS = 4, 16


def search_order(
    saliency: np.ndarray, structure: Structure, amount: float, groups: int = 1, seed: int = 0
) -> tuple[int, ...]:
    """An order of the output channels, each within its group, under which `structure` keeps most saliency found.

    It never keeps less than the channels as they are. The same arguments give the same order.

    Parameters
    ----------
    saliency
        (K, C / groups, R, S), 0 or more.
    structure
        Vectors or slices, whose length divides K / groups.
    amount
        Share of weights that will be zero.
    """
    rng = np.random.default_rng(seed)
    channels, length = len(saliency) // groups, max(structure.vector, structure.tile)
    unit = unit_shape(structure, saliency.shape, groups)
    # A channel's saliency in each unit that it can be part of.
    rows = unit_saliency(saliency, (1, *unit[1:])).reshape(len(saliency), -1)
    sums = rows.reshape(len(rows) // length, length, -1).sum(axis=1)
    threshold = float(np.quantile(sums, amount))
    found = np.concatenate(
        [
            start + _of_group(rows[start : start + channels], length, threshold, rng)
            for start in range(0, len(rows), channels)
        ]
    )
    whole = tuple(range(len(rows)))
    return max((whole, tuple(found.tolist())), key=lambda order: kept(saliency, structure, amount, groups, order))


def kept(
    saliency: np.ndarray, structure: Structure, amount: float, groups: int = 1, order: tuple[int, ...] | None = None
) -> float:
    """The share of all saliency that is kept when output channels are taken in `order`."""
    ordered = saliency if order is None else saliency[np.asarray(order)]
    plain = Structure("", structure.vector, structure.tile, structure.slices)
    mask = structured_mask(ordered, plain, amount, groups)
    return float(ordered[mask].sum(dtype=np.float64) / max(ordered.sum(dtype=np.float64), 1e-30))


def _of_group(rows: np.ndarray, length: int, threshold: float, rng: np.random.Generator) -> np.ndarray:
    order = _greedy(rows, length)
    for _ in range(SWEEPS):
        if not _sweep(rows, order, length, threshold, rng):
            break
    return order


def _greedy(rows: np.ndarray, length: int) -> np.ndarray:
    """Blocks one after the other: the strongest channel that is left, then whichever is most like the block so far."""
    left = np.ones(len(rows), bool)
    # Products of squares: what is large in both counts, what is large in one does not.
    strong = np.square(rows) / np.maximum(np.square(rows).sum(axis=1, keepdims=True), 1e-30)
    order = []
    for position in range(len(rows)):
        if position % length == 0:
            chosen = int(np.argmax(np.where(left, rows.sum(axis=1), -1.0)))
            block = strong[chosen].copy()
        else:
            chosen = int(np.argmax(np.where(left, strong @ block, -1.0)))
            block += strong[chosen]
        left[chosen] = False
        order.append(chosen)
    return np.asarray(order)


def _sweep(rows: np.ndarray, order: np.ndarray, length: int, threshold: float, rng: np.random.Generator) -> bool:
    """Offer each channel a swap with some of other blocks, and make the best that gains; whether any did."""
    sums = rows[order].reshape(len(rows) // length, length, -1).sum(axis=1)
    above = np.maximum(sums - threshold, 0).sum(axis=1)
    gained = False
    for here in range(len(order)):
        others = np.flatnonzero(np.arange(len(order)) // length != here // length)
        if not len(others):
            return False
        there = rng.choice(others, min(PARTNERS, len(others)), replace=False)
        mine, theirs = here // length, there // length
        moved = rows[order[there]] - rows[order[here]]
        new_mine, new_theirs = (
            np.maximum(sum_ - threshold, 0).sum(axis=1) for sum_ in (sums[mine] + moved, sums[theirs] - moved)
        )
        gains = new_mine + new_theirs - above[mine] - above[theirs]
        best = int(np.argmax(gains))
        if gains[best] > 1e-9 * max(threshold, 1e-30):
            gained = True
            sums[mine] += moved[best]
            sums[theirs[best]] -= moved[best]
            above[mine], above[theirs[best]] = new_mine[best], new_theirs[best]
            order[[here, there[best]]] = order[[there[best], here]]
    return gained
