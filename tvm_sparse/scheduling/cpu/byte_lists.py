"""Lists of non-zeros: without products that saturate, and each made whole sets of products that are added up apart."""

from collections.abc import Sequence

import numpy as np

from tvm_sparse.conv.codes import FOUR, is_wide


def unsaturated(columns: Sequence[np.ndarray], ends: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Lists that end at `ends` of int32 of four weights, and their places: each that is wide is two, each of half."""
    values, places = columns
    fours = np.ascontiguousarray(values).view(np.int8).reshape(-1, FOUR)
    wide = is_wide(fours)
    first = np.cumsum(1 + wide)[wide] - 2
    found, half = np.repeat(fours, 1 + wide, axis=0), fours[wide] >> 1
    found[first], found[first + 1] = half, fours[wide] - half
    return [found.view(np.int32)[:, 0], np.repeat(places, 1 + wide)], np.cumsum([0, *1 + wide])[ends]


def in_sets(columns: Sequence[np.ndarray], ends: np.ndarray, sets: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The lists of `columns` that end at `ends`, each with zeros behind it, in `size` elements; ends count sets."""
    lengths = np.diff(ends)
    found = np.cumsum([0, *-(-lengths // sets)])
    to = np.arange(lengths.sum()) + np.repeat(sets * found[:-1] - ends[:-1], lengths)
    result = np.zeros((len(columns), size), np.int32)
    result[:, to] = [each[: len(to)] for each in columns]
    return result, found.astype(np.int32)
