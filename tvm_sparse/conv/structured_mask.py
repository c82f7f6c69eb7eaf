"""Which weights to keep: masks of a structure that keep the most saliency.

A structure cuts a weight into units of one size, such as a vector of 16 output channels at one position. The saliency
of a unit is the sum over its weights, and the units with most of it stay.
"""

import math

import numpy as np

from tvm_sparse.conv.structure import FOUR, Structure

# Of two-of-four pruning: how many of four input channels stay, and the share of zeros that this makes.
KEPT = 2
TWO_FOUR = 1 - KEPT / FOUR


def unit_shape(structure: Structure, shape: tuple[int, ...], groups: int = 1) -> tuple[int, int, int, int]:
    """Extents (k, c, r, s) of what is kept or pruned as one, in a weight of `shape` (K, C / groups, R, S).

    Of slices over vectors it is the vector.
    """
    k, c, r, s = shape
    if structure.name == "filters":
        return 1, c, r, s
    if structure.name == "channels":
        return k // groups, 1, r, s
    if structure.name == "channels4":
        return 1, FOUR, 1, 1
    if structure.slices and structure.vector == 1:
        return structure.tile, 1, r if structure.slices == "c" else 1, s
    return structure.vector, 1, 1, 1


def structured_mask(
    saliency: np.ndarray, structure: Structure, amount: float, groups: int = 1, slice_amount: float | None = None
) -> np.ndarray:
    """The mask of `structure` that keeps most of `saliency`, with `amount` of all weights zero, to one unit.

    Parameters
    ----------
    saliency
        What is lost with each weight, 0 or more, (K, C / groups, R, S).
    structure
        Its vectors and tiles divide K / groups (`Structure.fitted`). Its `order`, if any, is taken.
    amount
        Share of zeros, 0 to below 1. One unit stays at least. Two of four is always a half.
    slice_amount
        Of slices over vectors, the share of slices that are zero; by default slices and vectors are as sparse.

    Returns
    -------
    numpy.ndarray
        bool, True where a weight stays.
    """
    if structure.order is not None:
        order = np.asarray(structure.order)
        mask = np.empty(saliency.shape, bool)
        mask[order] = _mask(saliency[order], structure, amount, groups, slice_amount)
        return mask
    return _mask(saliency, structure, amount, groups, slice_amount)


def _mask(
    saliency: np.ndarray, structure: Structure, amount: float, groups: int, slice_amount: float | None
) -> np.ndarray:
    if structure.name == "2:4":
        return _two_of_four(saliency)
    unit = unit_shape(structure, saliency.shape, groups)
    if not (structure.slices and structure.vector > 1):
        return keep_largest(saliency, unit, _kept(saliency.size // math.prod(unit), 1 - amount))
    slices = unit_shape(Structure("", tile=structure.tile, slices=structure.slices), saliency.shape)
    share = 1 - slice_amount if slice_amount is not None else math.sqrt(1 - amount)
    live = keep_largest(saliency, slices, _kept(saliency.size // math.prod(slices), share))
    vectors = min(_kept(saliency.size // unit[0], 1 - amount), int(live.sum()) // unit[0])
    # Below every saliency, so that vectors of zeros in living slices come before those of dead ones.
    return keep_largest(np.where(live, saliency, -1.0), unit, vectors)


def _kept(units: int, share: float) -> int:
    return max(1, round(units * share))


def unit_saliency(saliency: np.ndarray, unit: tuple[int, int, int, int]) -> np.ndarray:
    """Sums over units, (K / k, C / c, R / r, S / s), in float64."""
    cut = [extent for size, part in zip(saliency.shape, unit, strict=True) for extent in (size // part, part)]
    return saliency.reshape(cut).sum(axis=(1, 3, 5, 7), dtype=np.float64)


def keep_largest(saliency: np.ndarray, unit: tuple[int, int, int, int], count: int) -> np.ndarray:
    """The mask, of `saliency`'s shape, of the `count` units of most saliency; of equal ones the first."""
    sums = unit_saliency(saliency, unit)
    # The least of them, by which all are told apart; to sort VGG16's 138 million weights took 44 s.
    least = np.partition(sums, sums.size - count, axis=None)[sums.size - count]
    mask = sums > least
    mask.flat[np.flatnonzero(sums == least)[: count - np.count_nonzero(mask)]] = True
    for axis, extent in enumerate(unit):
        mask = mask.repeat(extent, axis=axis)
    return mask


def _two_of_four(saliency: np.ndarray) -> np.ndarray:
    k, c, r, s = saliency.shape
    fours = saliency.reshape(k, c // FOUR, FOUR, r, s)
    ranks = np.argsort(np.argsort(-fours, axis=2, kind="stable"), axis=2, kind="stable")
    return (ranks < KEPT).reshape(saliency.shape)
