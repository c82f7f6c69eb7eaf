"""Weights and biases of three convolutions as codegen/cuda/bottleneck.cu keeps them in shared memory."""

from collections.abc import Sequence

import numpy as np

from tvm_sparse.conv.storage import stored


def packed(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    """Weights (K, C, R, S) and biases (K,) of three layers as int32 (1, units, 4).

    Of each tap groups of 8 channels follow each other, of a group all filters, of a filter the 8 numbers: rows of 16
    bytes, as tensor cores read them. Biases are float32.
    """
    first, second, third = (stored(weight, dtype) for weight in weights)
    parts = [_rows(each) for each in (first[:, _channels(first.shape[1])], second, third[_order(len(third))])]
    parts += [bias.astype(np.float32) for bias in biases]
    return np.frombuffer(b"".join(each.tobytes() for each in parts), np.int32).reshape(1, -1, 4)


def _rows(weight: np.ndarray) -> np.ndarray:
    k, c, r, s = weight.shape
    return np.ascontiguousarray(weight.reshape(k, c // 8, 8, r, s).transpose(3, 4, 1, 0, 2))


def _channels(channels: int) -> np.ndarray:
    """Channels such that a thread's two pairs of a product of 16 are neighbours, as it reads and adds them.

    It has two times 8 neighbours of each 64: of a product the first pair of a half, then the second one.
    """
    within = np.arange(64).reshape(2, 4, 2, 2, 2).transpose(0, 2, 3, 1, 4).reshape(-1)
    return (np.arange(0, channels, 64)[:, None] + within).reshape(-1)


def _order(filters: int) -> np.ndarray:
    """Filters such that a thread, which has two neighbouring sums of each 8, has 8 neighbours of four such groups."""
    within = np.arange(32).reshape(4, 4, 2).transpose(1, 0, 2).reshape(-1)
    return (np.arange(0, filters, 32)[:, None] + within).reshape(-1)
