"""Lists of non-zeros, each made whole sets of products that are added up apart."""

from collections.abc import Sequence

import numpy as np


def in_sets(columns: Sequence[np.ndarray], ends: np.ndarray, sets: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The lists of `columns` that end at `ends`, each with zeros behind it, in `size` elements; ends count sets."""
    lengths = np.diff(ends)
    found = np.cumsum([0, *-(-lengths // sets)])
    to = np.arange(lengths.sum()) + np.repeat(sets * found[:-1] - ends[:-1], lengths)
    result = np.zeros((len(columns), size), np.int32)
    result[:, to] = [each[: len(to)] for each in columns]
    return result, found.astype(np.int32)
