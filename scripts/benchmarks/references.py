"""Whether what a contender computed is right: its error as a fraction of what is allowed."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.reference import Reference, reference, relative_difference
from tvm_sparse.conv.sparsity import digest
from tvm_sparse.conv.spec import ConvSpec

# Largest error of a result as a fraction of the largest value, declared for methods that the element-wise bound of
# `conv.reference` does not hold for: Winograd's and FFT's float32, and inputs rounded to 11 bits.
FLOAT32_TOLERANCE = 1e-4
ROUNDED_TOLERANCE = 2.0**-8


def error_of(y: np.ndarray, expected: Reference, tolerance: float | None) -> float:
    """Largest error as a fraction of what is allowed: 1 or less is correct; NaN anywhere gives infinity.

    Allowed is the element-wise bound, or `tolerance` times the largest value.
    """
    return expected.worst(y) if tolerance is None else relative_difference(y, expected.value) / tolerance


class References:
    """References of the first and the last image of one input (N, C, H, W), kept for each convolution and weight."""

    def __init__(self, x: Any):
        self._x = _ends(x)
        self._known: dict[tuple[ConvSpec, str], Reference] = {}

    def error(
        self, spec: ConvSpec, weight: np.ndarray, y: Any, tolerance: float | None, arithmetic: str = EXACT
    ) -> float:
        """`error_of` a result of all images, a torch tensor (N, K, OH, OW); all its elements must be finite.

        The element-wise bound is that of `arithmetic`.
        """
        if tuple(y.shape) != spec.output_shape or not bool(y.isfinite().all()):
            return math.inf
        key = (spec, digest(weight))
        if key not in self._known:
            self._known[key] = reference(replace(spec, n=len(self._x)), self._x[:, : spec.c], weight)
        return error_of(_ends(y), self._known[key].within(arithmetic, weight), tolerance)


def _ends(images: Any) -> np.ndarray:
    found: np.ndarray = (images[[0, -1]] if len(images) > 1 else images).cpu().numpy()
    return found
