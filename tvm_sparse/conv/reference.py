"""The float64 reference convolution and the error bound every kernel must meet."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, stored
from tvm_sparse.errors import VerificationError

# How a kernel computes, which decides its bound: float32 throughout, inputs cut to TF32, products of half-precision
# numbers added up in float32 by tensor cores; inputs as sums of two TF32 numbers; inputs cut to TF32, and what that
# misses added in bfloat16; inputs as sums of two float16 numbers.
EXACT, TF32, TENSOR_CORES = "float32", "tf32", "tensor_cores"
THREE_TF32, CORRECTED_TF32, THREE_HALF = "3xtf32", "corrected_tf32", "3xfloat16"
# Absolute errors of numbers as sums of two float16 numbers, as fractions of the largest input and of a filter's largest
# weight (see `in_3xhalf`).
THREE_HALF_INPUT, THREE_HALF_WEIGHT = 2.0**-23, 2.0**-37
# Products of float16 numbers added up in float16, in blocks of so many, and these in float16 too.
HALF_SUMS, HALF_SUMS_BLOCK = "half_sums", 16
# A NumPy array or a torch tensor.
Array = Any
# Unit roundoff of IEEE binary32, round to nearest.
FLOAT32_ROUNDOFF = STORAGE[FLOAT32].roundoff
# Largest relative error of a float32 number as TF32, which has 10 bits behind the point: cut off, as a tensor core cuts
# them off; rounding to nearest halves it, to TF32's unit roundoff 2**-11.
TF32_CUT, TF32_ROUNDOFF = 2.0**-10, 2.0**-11
# Rows and columns of a window whose largest output is written, where outputs are pooled (`conv.pooled`).
WINDOW = 2
# Images of a large batch that differ, where a kernel is verified on all of it.
DISTINCT_IMAGES = 8
# Largest absolute error of one rounding to a subnormal number, half of the smallest of these.
FLOAT32_UNDERFLOW = STORAGE[FLOAT32].underflow
FLOAT32_MAX = STORAGE[FLOAT32].largest
# Two float32 compilations of one network may differ by this fraction of a tensor's largest value: rounding grows from
# layer to layer, and no bound is known that is both tight and cheap. Single kernels are held to the bound.
AGREEMENT = 1e-3
# The same for a network some of whose convolutions compute in TF32, whose inputs are off by up to `TF32_CUT` each.
TF32_AGREEMENT = 1e-2
# The same for networks whose tensors are stored in half precision: some ten roundings of a largest value in either.
HALF_AGREEMENT = {FLOAT16: 1e-2, BFLOAT16: 5e-2}


def conv2d(spec: ConvSpec, x: Array, weight: Array, zeros: Callable[[tuple[int, ...]], Array] = np.zeros) -> Array:
    """The convolution of `x` (N, C, H, W) and `weight` (K, C / groups, R, S) in float64, no epilogue.

    `zeros` makes a float64 array of a shape: NumPy's, or a torch tensor where `x` and `weight` are, on their device.
    """
    top, left, _, _ = spec.padding
    padded, filters = zeros(spec.padded_shape), zeros(spec.weight_shape)
    padded[:, :, top : top + spec.h, left : left + spec.w] = x
    filters[:] = weight
    groups, channels, kernels = spec.groups, spec.weight_shape[1], spec.k // spec.groups
    out = zeros((spec.n, groups, kernels, spec.out_h * spec.out_w))
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    for r in range(spec.r):
        rows = slice(r * dil_h, r * dil_h + (spec.out_h - 1) * st_h + 1, st_h)
        for s in range(spec.s):
            columns = slice(s * dil_w, s * dil_w + (spec.out_w - 1) * st_w + 1, st_w)
            window = padded[:, :, rows, columns].reshape(spec.n, groups, channels, -1)
            out += filters[:, :, r, s].reshape(groups, kernels, channels) @ window
    return out.reshape(spec.output_shape)


@dataclass(frozen=True)
class Reference:
    """Exact result and element-wise error bound of one convolution on one input, both (N, K, OH, OW) float64.

    The bound is infinite where float32 may overflow on the way to the result, or the output's type in storing it. In
    half precision `sums` is what float32 sums contribute to it, the rest being what storing does. The largest finite
    magnitude of the input is `largest_input`.
    """

    value: np.ndarray
    bound: np.ndarray
    sums: np.ndarray | None = None
    largest_input: float = 0.0

    def worst(self, y: np.ndarray, images: np.ndarray | None = None) -> float:
        """Largest error as a fraction of its bound: 1 or less is correct; NaN anywhere gives infinity.

        Where a batch repeats images, this is the reference of the distinct ones, and `images` (N,) says which of them
        each image of `y` repeats.
        """
        if images is not None:
            return self._worst_of_repeated(y, images)
        error = np.abs(y.astype(np.float64) - self.value)
        # A bound of 0 (no non-zero weight, no epilogue) admits only the exact value, an infinite one anything.
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((error == 0) | np.isinf(self.bound), 0.0, error / self.bound)
        return float(np.inf) if np.isnan(ratio).any() else float(ratio.max())

    def pooled(self) -> "Reference":
        """Of the largest of each 2x2 outputs, no further off than the worst of them (`conv.pooled`)."""
        n, k, out_h, out_w = self.value.shape

        def largest(array: np.ndarray) -> np.ndarray:
            windows = array.reshape(n, k, out_h // WINDOW, WINDOW, out_w // WINDOW, WINDOW)
            found: np.ndarray = windows.max(axis=(3, 5))
            return found

        return replace(self, value=largest(self.value), bound=largest(self.bound))

    def within(self, arithmetic: str, weight: np.ndarray | None) -> "Reference":
        """The same with the bound of a kernel that computes in one of the ways above; TF32's need the `weight`."""
        bounds = {
            TF32: self.in_tf32,
            THREE_TF32: self.in_3xtf32,
            CORRECTED_TF32: self.in_corrected_tf32,
            THREE_HALF: self.in_3xhalf,
            HALF_SUMS: self.in_half_sums,
        }
        if arithmetic in bounds:
            assert weight is not None
            return bounds[arithmetic](weight)
        return self.on_tensor_cores() if arithmetic == TENSOR_CORES else self

    def on_tensor_cores(self) -> "Reference":
        """The same with the bound of a kernel that multiplies half-precision numbers on tensor cores.

        Products are exact, sums float32, but not rounded to nearest, which doubles their error (see `in_tf32`); so much
        more may be rounded as the result is stored.
        """
        assert self.sums is not None, "only half precision is multiplied so"
        return replace(self, bound=self.bound + (1 + STORAGE[BFLOAT16].roundoff) * self.sums)

    def in_half_sums(self, weight: np.ndarray) -> "Reference":
        """The same with the bound of a kernel that adds products up in float16, in blocks of m = `HALF_SUMS_BLOCK`.

        A sum has m products at most and is then added to a total, and the last of them to that in float32. There are
        at most ``nnz_k / m + 2`` of them, as the first may have fewer. So a product takes part in ``m + nnz_k / m + 2``
        roundings to float16, by up to its unit roundoff v each. Of the roundings, at most two for a product and two
        more, each may also miss half of the smallest number. There is no bound where magnitudes exceed float16's range.
        """
        assert self.sums is not None, "only half precision is added up so"
        storage, nnz = STORAGE[FLOAT16], nonzeros_of(weight)
        growth = (1 + storage.roundoff) ** (HALF_SUMS_BLOCK + nnz / HALF_SUMS_BLOCK + 2)
        magnitude = (self.sums - nnz * FLOAT32_UNDERFLOW) / ((nnz + 2) * FLOAT32_ROUNDOFF)
        bound = (growth - 1) * magnitude + growth * ((2 * nnz + 2) * storage.underflow + self.sums)
        bound = np.where(magnitude * growth > storage.largest, np.inf, bound)
        return replace(self, bound=_stored_bound(FLOAT16, self.value, bound))

    def in_tf32(self, weight: np.ndarray) -> "Reference":
        """The same with the bound of a kernel that rounds input and `weight` to TF32 and accumulates in float32.

        That bound is ``((1 + t)**2 - 1 + 2 * (nnz_k + 2) * u * (1 + t)**2) * (conv(|x|, |w|) + |bias| + |residual|)``
        with t = `TF32_CUT`: each product is exact and lies within a factor of ``(1 + t)**2`` of the one that was meant;
        tensor cores add up without rounding to nearest, which doubles the error of a sum (Fasi et al., Numerical
        behavior of NVIDIA tensor cores, 2021).
        """
        exact = (nonzeros_of(weight) + 2) * FLOAT32_ROUNDOFF
        growth = (1 + TF32_CUT) ** 2
        return replace(self, bound=self.bound * ((growth - 1 + 2 * exact * growth) / exact))

    def in_3xtf32(self, weight: np.ndarray) -> "Reference":
        """The same with the bound of a kernel that multiplies sums of two TF32 numbers, without the smallest product.

        Input and `weight` are ``high + low``, and three of four products are added up on tensor cores
        (`conv.tf32_parts`). Each part is rounded to nearest, by up to t = `TF32_ROUNDOFF`: the parts miss ``t**2`` of a
        number, and the product that is left out is ``t**2 * (1 + t)**2`` of the whole: together less than
        ``3 * t**2 * (1 + t)``. What is added up, three times as many products, is at most ``(1 + t)**2 * (1 + 2 * t)``
        of the magnitude, and each addition may be wrong by twice float32's rounding, as in `in_tf32`. Of numbers below
        2**-115 the low part may be lost.
        """
        t, nnz = TF32_ROUNDOFF, nonzeros_of(weight)
        exact = (nnz + 2) * FLOAT32_ROUNDOFF
        sums = 2 * (3 * nnz + 2) * FLOAT32_ROUNDOFF * (1 + t) ** 2 * (1 + 2 * t)
        return replace(self, bound=self.bound * ((3 * t**2 * (1 + t) + sums) / exact))

    def in_corrected_tf32(self, weight: np.ndarray) -> "Reference":
        """The same with the bound of a kernel that multiplies in TF32 and adds what that misses in bfloat16.

        Input and `weight` are ``high + low``, with the low part that TF32 cuts off, at most t = `TF32_CUT` of a number.
        A product is ``high * high + low * all + high * low`` without a rest; the factors of the last two are rounded to
        bfloat16, each by up to its unit roundoff b: both miss ``t * ((1 + b)**2 - 1)`` of the whole. What is added up,
        three times as many products, is at most ``1 + 2 * t * (1 + b)**2`` of the magnitude, and each addition may be
        wrong by twice float32's rounding, as in `in_tf32`. Of numbers below 2**-115 the low part may be lost.
        """
        nnz, growth = nonzeros_of(weight), (1 + STORAGE[BFLOAT16].roundoff) ** 2
        exact = (nnz + 2) * FLOAT32_ROUNDOFF
        sums = 2 * (3 * nnz + 2) * FLOAT32_ROUNDOFF * (1 + 2 * TF32_CUT * growth)
        return replace(self, bound=self.bound * ((2 * TF32_CUT * (growth - 1) + sums) / exact))

    def in_3xhalf(self, weight: np.ndarray) -> "Reference":
        """The same with the bound of a kernel that multiplies sums of two float16 numbers, but not the low parts.

        Input and `weight` are ``high + low``, each rounded to nearest, by up to v, float16's unit roundoff; three of
        four products are added up on tensor cores, as in `in_3xtf32`, which the relative terms are from.

        Of small numbers float16 has fewer bits. Low parts of inputs are stored 2**11 times as large, so that a number
        misses 2**-36 at most where the largest of an output's inputs is 2**-12 or more; otherwise inputs are scaled.
        That is 2**-24 of the largest, and as much in the product that is left out. A weight's high part is multiplied
        with inputs' low ones as 2**-11 of itself, which may be off by 2**-25 where the filter's largest is 2**14: by
        2**-39 of that, as may be its low part, times an input at most.
        """
        v, nnz, size = STORAGE[FLOAT16].roundoff, nonzeros_of(weight), np.abs(weight.astype(np.float64))
        exact = (nnz + 2) * FLOAT32_ROUNDOFF
        sums = 2 * (3 * nnz + 2) * FLOAT32_ROUNDOFF * (1 + v) ** 2 * (1 + 2 * v)
        of_filter = THREE_HALF_INPUT * size.sum(axis=(1, 2, 3)) + THREE_HALF_WEIGHT * nnz.ravel() * size.max(
            axis=(1, 2, 3)
        )
        absolute = (self.largest_input * of_filter)[None, :, None, None]
        return replace(self, bound=self.bound * ((3 * v**2 * (1 + v) + sums) / exact) + absolute)

    def _worst_of_repeated(self, y: np.ndarray, images: np.ndarray) -> float:
        """An image has the same error as another that it repeats where it has the same result: found much sooner."""
        outs: dict[int, np.ndarray] = {}
        worst = 0.0
        for image, out in zip(images.tolist(), y, strict=True):
            like = outs.setdefault(image, out)
            if like is out or not np.array_equal(out, like):
                worst = max(worst, Reference(self.value[image], self.bound[image]).worst(out))
        return worst

    def check(self, where: str, y: np.ndarray) -> float:
        """`worst(y)`, or VerificationError where it exceeds 1."""
        worst = self.worst(y)
        if worst > 1:
            raise VerificationError(
                where, "the result differs from the float64 reference", f"{worst:.3g} times the error bound", "up to 1"
            )
        return worst


def reference(
    spec: ConvSpec,
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> Reference:
    """Reference with epilogue and its bound.

    The bound of an output of filter k is ``(nnz_k + 2) * u * (conv(|x|, |w|) + |bias| + |residual|)``: a sum
    of nnz_k products in any order, each with one rounding, plus the epilogue's roundings (Higham, Accuracy
    and Stability of Numerical Algorithms, section 3.1), u the accumulator's unit roundoff. A product too small for a
    normal number adds half of the smallest subnormal one (section 2.2 there); where the sum of magnitudes exceeds
    float32's range, there is no bound. ReLU, clipped or not, never enlarges an error.

    In half precision `x`, `weight`, `bias` and `residual` hold numbers of that type, which are exact in float32, as is
    what the bound is said of: sums are float32. Storing the output adds one rounding to it, ``v * (|y| + bound)`` with
    the type's unit roundoff v, and half of its smallest number; there is no bound where that may overflow.
    """
    value = conv2d(spec, x, weight)
    magnitude = conv2d(spec, np.abs(x), np.abs(weight))
    if bias is not None:
        value += bias.astype(np.float64)[None, :, None, None]
        magnitude += np.abs(bias.astype(np.float64))[None, :, None, None]
    if residual is not None:
        value += residual
        magnitude += np.abs(residual.astype(np.float64))
    if spec.relu:
        value = np.clip(value, 0, spec.relu_max)
    nnz = nonzeros_of(weight)
    bound = (nnz + 2) * FLOAT32_ROUNDOFF * magnitude + nnz * FLOAT32_UNDERFLOW
    # The bound itself stays clear of the largest number's rounding.
    bound = np.where(magnitude + bound > FLOAT32_MAX, np.inf, bound)
    if spec.dtype == FLOAT32:
        finite = np.abs(x[np.isfinite(x)])
        return Reference(value, bound, largest_input=float(finite.max(initial=0.0)))
    return Reference(value, _stored_bound(spec.dtype, value, bound), bound)


def _stored_bound(dtype: str, value: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """`bound` of a float32 result after it is rounded to `dtype`."""
    storage = STORAGE[dtype]
    largest = np.abs(value) + bound
    bound = bound + storage.roundoff * largest + storage.underflow
    return np.where(largest > storage.largest, np.inf, bound)


def nonzeros_of(weight: np.ndarray) -> np.ndarray:
    """Of each filter of a weight (K, C / groups, R, S), as float64 (1, K, 1, 1)."""
    return (weight != 0).sum(axis=(1, 2, 3)).astype(np.float64)[None, :, None, None]


def relative_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference of two arrays as a fraction of the largest value of `expected`; infinity for other shapes.

    A value that is not finite differs infinitely from any but itself.
    """
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        worst = float(np.where(same, 0.0, np.abs(found - expected)).max(initial=0.0))
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)) or 1.0
    return float("inf") if np.isnan(worst) else worst / scale


def repetition(n: int, seed: int) -> np.ndarray:
    """For each of a batch's `n` images the distinct image that it repeats: at most `DISTINCT_IMAGES` of them.

    The float64 reference of a large batch takes longer than a search. In random order, an output of the wrong image is
    still found, unless every image is mistaken for one like it.
    """
    rng = np.random.default_rng(seed)
    distinct = np.arange(min(n, DISTINCT_IMAGES))
    return np.concatenate([distinct, rng.integers(0, DISTINCT_IMAGES, n - len(distinct))])


def random_arguments(spec: ConvSpec, seed: int, integers: bool = False) -> dict[str, np.ndarray]:
    """Random ``x`` and, where the spec has them, ``bias`` and ``residual``, of the spec's type.

    With `integers`, small whole numbers: every partial sum is then exact in float32 and results must be equal, or as
    near as the spec's type can store them.
    """
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        values = rng.integers(-4, 5, shape) if integers else rng.standard_normal(shape)
        return stored(values.astype(np.float32), spec.dtype)

    arguments = {"x": draw(spec.input_shape)}
    if spec.bias:
        arguments["bias"] = draw((spec.k,))
    if spec.residual:
        arguments["residual"] = draw(spec.output_shape)
    return arguments
