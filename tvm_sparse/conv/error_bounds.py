"""Error bounds of kernels that compute in other ways than float32 throughout."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.conv.winograd_filter import READ, TAPS, TILE, transformed

# How a kernel computes, which decides its bound: float32 throughout, inputs cut to TF32, products of half-precision
# numbers added up in float32 by tensor cores; inputs cut to TF32, and what that misses added in bfloat16; inputs as
# sums of two float16 numbers, or rounded to one.
EXACT, TF32, TENSOR_CORES = "float32", "tf32", "tensor_cores"
CORRECTED_TF32, THREE_HALF, ONE_HALF = "corrected_tf32", "3xfloat16", "1xfloat16"
# Those that are no more exact than TF32.
ROUNDED = (TF32, ONE_HALF)
# Absolute errors of numbers as sums of two float16 numbers, as fractions of the largest input and of a filter's largest
# weight (see `three_half`).
THREE_HALF_INPUT, THREE_HALF_WEIGHT = 2.0**-23, 2.0**-37
# The same as one (see `one_half`).
ONE_HALF_INPUT, ONE_HALF_WEIGHT = 2.0**-18, 2.0**-38
# Products of float16 numbers added up in float16, in blocks of so many, and these in float16 too.
HALF_SUMS, HALF_SUMS_BLOCK = "half_sums", 16
# Tiles of inputs and filters transformed in float32, multiplied, and transformed back (`conv.conv2d_winograd`).
WINOGRAD = "winograd"
# Unit roundoff of IEEE binary32, round to nearest.
FLOAT32_ROUNDOFF = STORAGE[FLOAT32].roundoff
# Largest absolute error of one rounding to a subnormal number, half of the smallest of these.
FLOAT32_UNDERFLOW = STORAGE[FLOAT32].underflow
# Largest relative error of a float32 number as TF32, which has 10 bits behind the point: cut off, as a tensor core cuts
# them off.
TF32_CUT = 2.0**-10


class Known(Protocol):
    """Exact result and bound in float32 of one convolution on one input: a `conv.reference.Reference`."""

    @property
    def value(self) -> np.ndarray: ...
    @property
    def bound(self) -> np.ndarray: ...
    @property
    def sums(self) -> np.ndarray | None: ...
    @property
    def largest_input(self) -> float: ...


def bound_of(arithmetic: str, known: Known, weight: np.ndarray | None) -> np.ndarray:
    """The bound of a kernel that computes in one of the ways above, from that of one in float32 throughout.

    Only that in float32 and that on tensor cores do without the `weight`.
    """
    if arithmetic == EXACT:
        return known.bound
    if arithmetic == TENSOR_CORES:
        return on_tensor_cores(known)
    assert weight is not None
    return _BOUNDS[arithmetic](known, weight)


def tf32(known: Known, weight: np.ndarray) -> np.ndarray:
    """Of a kernel that rounds input and `weight` to TF32 and accumulates in float32.

    That bound is ``((1 + t)**2 - 1 + 2 * (nnz_k + 2) * u * (1 + t)**2) * (conv(|x|, |w|) + |bias| + |residual|)``
    with t = `TF32_CUT`: each product is exact and lies within a factor of ``(1 + t)**2`` of the one that was meant;
    tensor cores add up without rounding to nearest, which doubles the error of a sum (Fasi et al., Numerical
    behavior of NVIDIA tensor cores, 2021).
    """
    exact = (nonzeros_of(weight) + 2) * FLOAT32_ROUNDOFF
    growth = (1 + TF32_CUT) ** 2
    return known.bound * ((growth - 1 + 2 * exact * growth) / exact)


def corrected_tf32(known: Known, weight: np.ndarray) -> np.ndarray:
    """Of a kernel that multiplies in TF32 and adds what that misses in bfloat16.

    Input and `weight` are ``high + low``, with the low part that TF32 cuts off, at most t = `TF32_CUT` of a number.
    A product is ``high * high + low * all + high * low`` without a rest; the factors of the last two are rounded to
    bfloat16, each by up to its unit roundoff b: both miss ``t * ((1 + b)**2 - 1)`` of the whole. What is added up,
    three times as many products, is at most ``1 + 2 * t * (1 + b)**2`` of the magnitude, and each addition may be
    wrong by twice float32's rounding, as in `tf32`. Of numbers below 2**-115 the low part may be lost.
    """
    nnz, growth = nonzeros_of(weight), (1 + STORAGE[BFLOAT16].roundoff) ** 2
    exact = (nnz + 2) * FLOAT32_ROUNDOFF
    sums = 2 * (3 * nnz + 2) * FLOAT32_ROUNDOFF * (1 + 2 * TF32_CUT * growth)
    return known.bound * ((2 * TF32_CUT * (growth - 1) + sums) / exact)


def three_half(known: Known, weight: np.ndarray) -> np.ndarray:
    """Of a kernel that multiplies sums of two float16 numbers, but not the low parts.

    Input and `weight` are ``high + low``, and three of four products are added up on tensor cores. Each part is rounded
    to nearest, by up to float16's unit roundoff t: the parts miss ``t**2`` of a number, and the product that is left
    out is ``t**2 * (1 + t)**2`` of the whole: together less than ``3 * t**2 * (1 + t)``. What is added up, three times
    as many products, is at most ``(1 + t)**2 * (1 + 2 * t)`` of the magnitude, and each addition may be wrong by twice
    float32's rounding, as in `tf32`.

    Of small numbers float16 has fewer bits. Low parts of inputs are stored 2**11 times as large, so that a number
    misses 2**-36 at most where the largest of an output's inputs is 2**-12 or more; otherwise inputs are scaled.
    That is 2**-24 of the largest, and as much in the product that is left out. A weight's high part is multiplied
    with inputs' low ones as 2**-11 of itself, which may be off by 2**-25 where the filter's largest is 2**14: by
    2**-39 of that, as may be its low part, times an input at most.
    """
    t, nnz, size = STORAGE[FLOAT16].roundoff, nonzeros_of(weight), np.abs(weight.astype(np.float64))
    exact = (nnz + 2) * FLOAT32_ROUNDOFF
    sums = 2 * (3 * nnz + 2) * FLOAT32_ROUNDOFF * (1 + t) ** 2 * (1 + 2 * t)
    of_filter = THREE_HALF_INPUT * size.sum(axis=(1, 2, 3)) + THREE_HALF_WEIGHT * nnz.ravel() * size.max(axis=(1, 2, 3))
    absolute = (known.largest_input * of_filter)[None, :, None, None]
    return known.bound * ((3 * t**2 * (1 + t) + sums) / exact) + absolute


def one_half(known: Known, weight: np.ndarray) -> np.ndarray:
    """Of a kernel that rounds input and `weight` to float16, scaled where they are out of its range.

    As `tf32`, but rounded to nearest, by up to float16's unit roundoff t. Of small numbers float16 has fewer bits: an
    input misses 2**-25 at most where the largest of an output's inputs is 2**-6 or more, otherwise they are scaled;
    that is 2**-19 of the largest. A weight misses as much where the filter's largest is 2**14 or more, 2**-39 of that.
    """
    t, nnz, size = STORAGE[FLOAT16].roundoff, nonzeros_of(weight), np.abs(weight.astype(np.float64))
    exact = (nnz + 2) * FLOAT32_ROUNDOFF
    growth = (1 + t) ** 2
    of_filter = ONE_HALF_INPUT * size.sum(axis=(1, 2, 3)) + ONE_HALF_WEIGHT * nnz.ravel() * size.max(axis=(1, 2, 3))
    absolute = (known.largest_input * of_filter)[None, :, None, None]
    return known.bound * ((growth - 1 + 2 * exact * growth) / exact) + absolute


def on_tensor_cores(known: Known) -> np.ndarray:
    """Of a kernel that multiplies half-precision numbers on tensor cores.

    Products are exact, sums float32, but not rounded to nearest, which doubles their error (see `tf32`); so much
    more may be rounded as the result is stored.
    """
    assert known.sums is not None, "only half precision is multiplied so"
    return known.bound + (1 + STORAGE[BFLOAT16].roundoff) * known.sums


def half_sums(known: Known, weight: np.ndarray) -> np.ndarray:
    """Of a kernel that adds products up in float16, in blocks of m = `HALF_SUMS_BLOCK`.

    A sum has m products at most and is then added to a total, and the last of them to that in float32. There are
    at most ``nnz_k / m + 2`` of them, as the first may have fewer. So a product takes part in ``m + nnz_k / m + 2``
    roundings to float16, by up to its unit roundoff v each. Of the roundings, at most two for a product and two
    more, each may also miss half of the smallest number. There is no bound where magnitudes exceed float16's range.
    """
    assert known.sums is not None, "only half precision is added up so"
    storage, nnz = STORAGE[FLOAT16], nonzeros_of(weight)
    growth = (1 + storage.roundoff) ** (HALF_SUMS_BLOCK + nnz / HALF_SUMS_BLOCK + 2)
    magnitude = (known.sums - nnz * FLOAT32_UNDERFLOW) / ((nnz + 2) * FLOAT32_ROUNDOFF)
    bound = (growth - 1) * magnitude + growth * ((2 * nnz + 2) * storage.underflow + known.sums)
    bound = np.where(magnitude * growth > storage.largest, np.inf, bound)
    return stored_bound(FLOAT16, known.value, bound)


def winograd(known: Known, weight: np.ndarray) -> np.ndarray:
    """Of a kernel that computes in float32 by Winograd's F(2x2, 3x3) (`conv.conv2d_winograd`).

    An element of a transformed tile is a sum of four inputs, at most four times the largest, and two roundings; one of
    a transformed filter is rounded once. C products are added up, nine such sums make an output by four more
    roundings, and an epilogue adds two: less than ``C + 12`` in all, of magnitudes that are at most four times the
    largest input times the sum over nine positions of the transformed filter.
    """
    size = np.abs(transformed(weight))
    # Positions 0 to 2 of a direction make its first output, 1 to 3 the second.
    firsts, largest = range(TILE), READ * known.largest_input
    nine = [size[:, i : i + TAPS, j : j + TAPS].sum(axis=(1, 2, 3)) for i in firsts for j in firsts]
    magnitude = largest * np.max(nine, axis=0)[None, :, None, None]
    roundings = weight.shape[1] + 12
    tiny = TAPS * TAPS * FLOAT32_UNDERFLOW * (1 + largest)
    bound = known.bound + roundings * (FLOAT32_ROUNDOFF * magnitude + tiny)
    return np.where(magnitude + bound > STORAGE[FLOAT32].largest, np.inf, bound)


def stored_bound(dtype: str, value: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """`bound` of a float32 result after it is rounded to `dtype`."""
    storage = STORAGE[dtype]
    largest = np.abs(value) + bound
    bound = bound + storage.roundoff * largest + storage.underflow
    return np.where(largest > storage.largest, np.inf, bound)


def nonzeros_of(weight: np.ndarray) -> np.ndarray:
    """Of each filter of a weight (K, C / groups, R, S), as float64 (1, K, 1, 1)."""
    return (weight != 0).sum(axis=(1, 2, 3)).astype(np.float64)[None, :, None, None]


_BOUNDS: dict[str, Callable[[Known, np.ndarray], np.ndarray]] = {
    TF32: tf32,
    CORRECTED_TF32: corrected_tf32,
    THREE_HALF: three_half,
    ONE_HALF: one_half,
    HALF_SUMS: half_sums,
    WINOGRAD: winograd,
}
