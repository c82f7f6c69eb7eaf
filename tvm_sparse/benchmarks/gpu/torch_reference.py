"""The float64 reference of `tvm_sparse.reference` where the tensors are, and errors as fractions of what is allowed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_sparse.conv.reference import FLOAT32_ROUNDOFF
from tvm_sparse.conv.sparsity import digest
from tvm_sparse.conv.spec import ConvSpec

Tensor = Any


def conv2d(spec: ConvSpec, x: Tensor, weight: Tensor) -> Tensor:
    """The convolution of `x` (N, C, H, W) and `weight` (K, C / groups, R, S) in float64, tap by tap."""
    import torch

    top, left, bottom, right = spec.padding
    padded = torch.nn.functional.pad(x.double(), (left, right, top, bottom))
    padded = padded.unflatten(1, (spec.groups, spec.c // spec.groups))
    filters = weight.double().unflatten(0, (spec.groups, spec.k // spec.groups))
    y = torch.zeros(spec.output_shape, dtype=torch.float64, device=x.device).unflatten(1, filters.shape[:2])
    for r in range(spec.r):
        rows = slice(r * spec.dilation[0], r * spec.dilation[0] + (spec.out_h - 1) * spec.stride[0] + 1, spec.stride[0])
        for s in range(spec.s):
            first = s * spec.dilation[1]
            window = padded[:, :, :, rows, first : first + (spec.out_w - 1) * spec.stride[1] + 1 : spec.stride[1]]
            y += torch.einsum("gkc,ngchw->ngkhw", filters[..., r, s], window)
    return y.flatten(1, 2)


@dataclass(frozen=True)
class Expected:
    """Exact result and element-wise bound of some images, float64."""

    value: Tensor
    bound: Tensor

    def error(self, y: Tensor, tolerance: float | None) -> float:
        """Largest error as a fraction of what is allowed: 1 or less is correct; NaN anywhere gives infinity.

        Allowed is the element-wise bound, or `tolerance` times the largest value.
        """
        import torch

        difference = (y.double() - self.value).abs()
        if tolerance is not None:
            fraction = difference / (tolerance * self.value.abs().max())
        else:
            fraction = difference / self.bound
        # Where nothing is allowed, only the exact value passes.
        fraction = torch.where(difference == 0, 0.0, fraction)
        return float("inf") if bool(fraction.isnan().any()) else float(fraction.max())


class References:
    """Expected results of the first and the last image of one input, kept for each convolution and weight."""

    def __init__(self, x: Tensor):
        self._x = x[[0, -1]] if x.shape[0] > 1 else x
        self._known: dict[tuple[ConvSpec, str], Expected] = {}

    def error(self, spec: ConvSpec, weight: np.ndarray, y: Tensor, tolerance: float | None) -> float:
        """Error of a result of all images, every element of which must be finite; see `Expected.error`."""
        if tuple(y.shape) != spec.output_shape or not bool(y.isfinite().all()):
            return float("inf")
        return self._expected(spec, weight).error(y[[0, -1]] if y.shape[0] > 1 else y, tolerance)

    def _expected(self, spec: ConvSpec, weight: np.ndarray) -> Expected:
        key = (spec, digest(weight))
        if key not in self._known:
            self._known[key] = expected(replace(spec, n=self._x.shape[0]), self._x[:, : spec.c], weight)
        return self._known[key]


def expected(spec: ConvSpec, x: Tensor, weight: np.ndarray) -> Expected:
    """Result and bound, as `tvm_sparse.reference.reference` has them, of a convolution without epilogue."""
    import torch

    filters = torch.from_numpy(weight).to(x.device)
    nnz = (filters != 0).sum(dim=(1, 2, 3)).double()[None, :, None, None]
    magnitude = conv2d(spec, x.abs(), filters.abs())
    return Expected(conv2d(spec, x, filters), (nnz + 2) * FLOAT32_ROUNDOFF * magnitude)
