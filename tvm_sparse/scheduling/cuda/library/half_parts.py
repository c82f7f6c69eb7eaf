"""Float32 weights as sums of two float16 numbers, for kernels that multiply in three products (`three_half`)."""

import numpy as np

# A filter's largest weight is brought to 2**14 up to 2**15, below float16's largest number.
EXPONENT = 15


def exponents_of(weights: np.ndarray) -> np.ndarray:
    """Of filters (filters, ...) the powers of two, int32: weights are divided by them, sums multiplied with them."""
    _, exponents = np.frexp(np.abs(weights).max(axis=tuple(range(1, weights.ndim))))
    return np.clip(exponents - EXPONENT, -120, 120)


def factors_of(exponents: np.ndarray) -> np.ndarray:
    """What sums are multiplied with, float32."""
    return np.ldexp(np.float32(1), exponents).astype(np.float32)


def half_parts(values: np.ndarray) -> np.ndarray:
    """High parts and, behind them along a new first axis, what these miss: (2, ...) float16."""
    high = values.astype(np.float16)
    return np.stack([high, (values - high.astype(np.float32)).astype(np.float16)])
