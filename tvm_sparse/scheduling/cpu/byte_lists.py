"""Lists of non-zeros: without products that saturate, and each made whole sets of products that are added up apart."""

from collections.abc import Sequence

import numpy as np

from tvm_sparse.conv.codes import FOUR, is_wide


def unsaturated(
    values: np.ndarray, places: np.ndarray, ends: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Lists of int32 of four weights, of which each that is wide is two at its place, each of half."""
    times = 1 + is_wide(values.view(np.int8).reshape(-1, FOUR))
    found = np.repeat(values.view(np.int8).reshape(-1, FOUR), times, axis=0)
    (first,) = np.nonzero(times[np.repeat(np.arange(len(times)), times)] == 2)
    first = first[::2]
    half = found[first] >> 1
    found[first + 1] -= half
    found[first] = half
    return (found.view(np.int32)[:, 0], np.repeat(places, times)), np.cumsum([0, *times])[ends]


def in_sets(columns: Sequence[np.ndarray], ends: np.ndarray, sets: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The lists of `columns` that end at `ends`, each with zeros behind it, in `size` elements; ends count sets."""
    lengths = np.diff(ends)
    found = np.cumsum([0, *-(-lengths // sets)])
    to = np.arange(lengths.sum()) + np.repeat(sets * found[:-1] - ends[:-1], lengths)
    result = np.zeros((len(columns), size), np.int32)
    result[:, to] = [each[: len(to)] for each in columns]
    return result, found.astype(np.int32)
