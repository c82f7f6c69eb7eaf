"""The float64 reference convolution and the error bound every kernel must meet."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_sparse.conv.codes import CODES
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8
from tvm_sparse.conv.error_bounds import FLOAT32_ROUNDOFF, FLOAT32_UNDERFLOW, bound_of, nonzeros_of, stored_bound
from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, stored
from tvm_sparse.errors import VerificationError

# A NumPy array or a torch tensor.
Array = Any
# Rows and columns of a window whose largest output is written, where outputs are pooled (`conv.pooled`).
WINDOW = 2
# Images of a large batch that differ, where a kernel is verified on all of it.
DISTINCT_IMAGES = 8
FLOAT32_MAX = STORAGE[FLOAT32].largest
# Two float32 compilations of one network may differ by this fraction of a tensor's largest value: rounding grows from
# layer to layer, and no bound is known that is both tight and cheap. Single kernels are held to the bound.
AGREEMENT = 1e-3
# The same for a network some of whose convolutions compute in TF32, whose inputs are off by up to
# `error_bounds.TF32_CUT` each.
TF32_AGREEMENT = 1e-2
# The same for networks whose tensors are stored in half precision: some ten roundings of a largest value in either.
HALF_AGREEMENT = {FLOAT16: 1e-2, BFLOAT16: 5e-2}
# And for quantised ones: some steps of eight bits, by which a sum on the edge of two moves all behind it.
AGREEMENTS = {**HALF_AGREEMENT, INT8: 1e-1}


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

    def interleaved(self, interleaving: Interleaving) -> "Reference":
        """Of the same outputs as they interleave."""
        return replace(self, value=interleaving.of(self.value), bound=interleaving.of(self.bound))

    def within(self, arithmetic: str, weight: np.ndarray | None) -> "Reference":
        """The same with the bound of a kernel that computes in one of the ways that `conv.error_bounds` names."""
        return replace(self, bound=bound_of(arithmetic, self, weight))

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
    if spec.volumes is not None:
        x, spec = spec.volumes.expanded(x, spec.groups), replace(spec, volumes=None)
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
    return Reference(value, stored_bound(spec.dtype, value, bound), bound)


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


def repetition(n: int, seed: int, most: int = DISTINCT_IMAGES) -> np.ndarray:
    """For each of a batch's `n` images the distinct image that it repeats: `most` of them at most.

    The float64 reference of a large batch takes longer than a search. In random order, an output of the wrong image is
    still found, unless every image is mistaken for one like it.
    """
    rng = np.random.default_rng(seed)
    distinct = np.arange(min(n, most))
    return np.concatenate([distinct, rng.integers(0, most, n - len(distinct))])


def random_arguments(spec: ConvSpec, seed: int, integers: bool = False) -> dict[str, np.ndarray]:
    """Random ``x`` and, where the spec has them, ``bias`` and ``residual``, of the spec's type.

    With `integers`, small whole numbers: every partial sum is then exact in float32 and results must be equal, or as
    near as the spec's type can store them. The input of a quantised convolution is codes.
    """
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        values = rng.integers(-4, 5, shape) if integers else rng.standard_normal(shape)
        return stored(values.astype(np.float32), spec.dtype)

    arguments = {"x": draw(spec.input_shape)}
    if spec.is_quantised:
        codes = rng.integers(spec.least, spec.least + CODES, spec.input_shape)
        arguments["x"] = codes.astype(np.float32)
    if spec.bias:
        arguments["bias"] = draw((spec.k,))
    if spec.residual:
        arguments["residual"] = draw(spec.output_shape)
    return arguments
