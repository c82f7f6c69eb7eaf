"""Filters of 3x3 taps as Winograd's F(2x2, 3x3) multiplies them (`conv2d_winograd`)."""

import numpy as np

# Outputs of a tile in each direction, inputs that it reads, and taps.
TILE, READ, TAPS = 2, 4, 3
# G: a filter's three taps in one direction as four.
_TO_FOUR = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def transformed(weight: np.ndarray) -> np.ndarray:
    """``G g Gt`` of the filters of a weight (K, C, 3, 3): (K, 4, 4, C) in float64."""
    found: np.ndarray = np.einsum("ir,kcrs,js->kijc", _TO_FOUR, weight.astype(np.float64), _TO_FOUR, optimize=True)
    return found
