"""Integers of eight bits in float32: the codes of quantised tensors, less their zero points."""

import numpy as np

# Of a weight, which may have a zero point; of one that instructions for eight bits take, and the least of that.
LARGEST, LARGEST_SIGNED, LEAST_SIGNED = 255, 127, -128
# Values of a code.
CODES = 256
# Weights of this sum times codes fit an int16.
INT16_SUM = 128
# Input channels whose products an instruction adds up.
FOUR = 4


def holds_codes(weight: np.ndarray) -> bool:
    """Whether a weight is one in eight bits, of which a scale was left behind the layer: integers of several sizes."""
    largest = np.abs(weight).max(initial=0)
    return 1 < largest <= LARGEST and bool((weight == np.rint(weight)).all())


def holds_signed_codes(weight: np.ndarray) -> bool:
    """Whether a weight is one in eight bits whose integers instructions for these take."""
    return holds_codes(weight) and bool(weight.min() >= LEAST_SIGNED and weight.max() <= LARGEST_SIGNED)


def in_fours(array: np.ndarray) -> np.ndarray:
    """An array (N, C, H, W) as (N, blocks, 4, H, W), of fours of channels, the last with zeros behind C."""
    n, c, h, w = array.shape
    return np.pad(array, ((0, 0), (0, -c % FOUR), (0, 0), (0, 0))).reshape(n, -(-c // FOUR), FOUR, h, w)


def fours_of(weight: np.ndarray) -> int:
    """How many fours of input channels at one tap of a weight (K, C, R, S) are not all zero."""
    return int(np.count_nonzero(in_fours(weight).any(axis=2)))


def is_wide(fours: np.ndarray) -> np.ndarray:
    """Of fours of integers (…, 4): whether two neighbours' products with codes may be too large for an int16."""
    pairs = fours.astype(np.int64).reshape(*fours.shape[:-1], 2, 2)
    sums = np.maximum(pairs, 0).sum(axis=-1), np.maximum(-pairs, 0).sum(axis=-1)
    return (np.maximum(*sums) > INT16_SUM).any(axis=-1)


def wide_fours_of(weight: np.ndarray) -> int:
    """How many fours of a weight (K, C, R, S) are wide."""
    return int(np.count_nonzero(is_wide(np.moveaxis(in_fours(weight), 2, -1))))


def as_codes(weight: np.ndarray) -> np.ndarray:
    """A weight of the same zeros in codes that instructions for eight bits take, float32."""
    largest = np.abs(weight).max(initial=0) or 1
    return np.asarray(np.sign(weight) * np.ceil(np.abs(weight) / largest * LARGEST_SIGNED), np.float32)
