"""A float32 number as the sum of two TF32 numbers, and a convolution of such sums as one convolution in TF32.

TF32, in which tensor cores multiply, has 11 significant bits, so ``high + low`` has 22 of float32's 24. The product of
two such sums without ``low * low`` is a sum over three times as many channels: the input's parts high, low, high, times
the weight's parts high, high, low (Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores, 2022).
"""

from dataclasses import replace

import numpy as np
from tvm import tirx

from tvm_sparse.conv.spec import ConvSpec

# Products that are added up for one.
PRODUCTS = 3
# Tensor cores read channels in groups of so many.
GROUP = 4
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


def parts_of_weight(weight: np.ndarray) -> np.ndarray:
    """A weight (K, C, R, S) as (K, R, S, channels of `spec_of_parts`)."""
    high, low = parts(weight)
    joined = np.concatenate([high, high, low], axis=1).transpose(0, 2, 3, 1)
    return np.pad(joined, ((0, 0), (0, 0), (0, 0), (0, -joined.shape[3] % GROUP)))


def spec_of_parts(spec: ConvSpec) -> ConvSpec:
    """The convolution of the parts of `spec`, one group: of those elements that are read, with its padding if need be.

    A 1x1 convolution with a stride reads few of its input's elements; padding that differs from side to side is copied.
    """
    channels = -(-PRODUCTS * spec.c // GROUP) * GROUP
    if is_strided_product(spec):
        h, w = spec.out_h, spec.out_w
        return replace(spec, c=channels, h=h, w=w, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1))
    if spec.symmetric_padding is None:
        _, _, h, w = spec.padded_shape
        return replace(spec, c=channels, h=h, w=w, padding=(0, 0, 0, 0))
    return replace(spec, c=channels)


def is_strided_product(spec: ConvSpec) -> bool:
    """Whether each output reads one pixel, and not all pixels are read."""
    return spec.r == spec.s == 1 and not any(spec.padding) and spec.stride != (1, 1)


def high_and_low(value: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """`parts` of a float32 expression."""
    high = _rounded(value)
    rest = tirx.Select(high == value, tirx.const(0.0, "float32"), value - high)
    return high, _rounded(rest)


def _rounded(value: tirx.Expr) -> tirx.Expr:
    bits = tirx.reinterpret("int32", value) + tirx.const(_HALF, "int32")
    near = tirx.reinterpret("float32", bits & tirx.const(_KEPT, "int32"))
    return tirx.Select(tirx.abs(value) < tirx.const(_LARGEST, "float32"), near, value)
