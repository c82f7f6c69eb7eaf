"""Integers of eight bits in float32: the codes of quantised tensors, less their zero points."""

import numpy as np

# Of a weight, which may have a zero point; of one that instructions for eight bits take.
LARGEST, LARGEST_SIGNED = 255, 127
# Values of a code.
CODES = 256
# Input channels whose products an instruction adds up.
FOUR = 4


def holds_codes(weight: np.ndarray) -> bool:
    """Whether a weight is one in eight bits, of which a scale was left behind the layer: integers of several sizes."""
    largest = np.abs(weight).max(initial=0)
    return 1 < largest <= LARGEST and bool((weight == np.rint(weight)).all())


def fours_of(weight: np.ndarray) -> int:
    """How many fours of input channels at one tap of a weight (K, C, R, S) are not all zero; 0 where C has a rest."""
    k, c, r, s = weight.shape
    return int(np.count_nonzero(weight.reshape(k, c // FOUR, FOUR, r, s).any(axis=2))) if c % FOUR == 0 else 0


def as_codes(weight: np.ndarray) -> np.ndarray:
    """A weight of the same zeros in codes that instructions for eight bits take, float32."""
    largest = np.abs(weight).max(initial=0) or 1
    return np.asarray(np.sign(weight) * np.ceil(np.abs(weight) / largest * LARGEST_SIGNED), np.float32)
