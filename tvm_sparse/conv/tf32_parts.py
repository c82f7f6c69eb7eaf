"""A float32 number as the sum of two TF32 numbers, and a convolution of such sums as one convolution in TF32.

TF32, in which tensor cores multiply, has 11 significant bits, so ``high + low`` has 22 of float32's 24. The product of
two such sums without ``low * low`` is a sum over three times as many channels: the input's parts high, low, high, times
the weight's parts high, high, low (Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores, 2022).
"""

import numpy as np
from tvm import tirx

# Products that are added up for one.
PRODUCTS = 3
_KEPT, _HALF = -0x2000, 0x1000
# Larger numbers, of which half a unit of TF32's last place would make infinity, are left as they are.
_LARGEST = float(np.uint32(0x7F7FF000).view(np.float32))


def rounded_to_tf32(values: np.ndarray) -> np.ndarray:
    """Float32 numbers rounded to the nearest in TF32, ties away from zero; what is largest or not finite stays."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    with np.errstate(over="ignore"):
        near = ((bits + np.int32(_HALF)) & np.int32(_KEPT)).view(np.float32)
    return np.where(np.abs(values) < _LARGEST, near, values)


def parts(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(high, low)`` of float32 numbers; what is infinite has no low part."""
    high = rounded_to_tf32(values)
    with np.errstate(invalid="ignore"):
        return high, rounded_to_tf32(np.where(high == values, 0, values - high).astype(np.float32))


def high_and_low(value: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """`parts` of a float32 expression."""
    high = _rounded(value)
    rest = tirx.Select(high == value, tirx.const(0.0, "float32"), value - high)
    return high, _rounded(rest)


def _rounded(value: tirx.Expr) -> tirx.Expr:
    bits = tirx.reinterpret("int32", value) + tirx.const(_HALF, "int32")
    near = tirx.reinterpret("float32", bits & tirx.const(_KEPT, "int32"))
    return tirx.Select(tirx.abs(value) < tirx.const(_LARGEST, "float32"), near, value)
