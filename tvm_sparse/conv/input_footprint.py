"""Which rows and columns of its padded input a convolution reads.

A 1x1 kernel with stride 2 reads every second row and column; kernels that stage their input in shared memory copy only
these. ResNet-50 has three such layers, whose whole input is four times what they read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from tvm_sparse.conv.spec import ConvSpec


@dataclass(frozen=True)
class Lattice:
    """Rows and columns that are read are multiples of `step`; `stride` and `dilation` count them. All are (h, w)."""

    step: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]


@cache
def lattice(spec: ConvSpec) -> Lattice:
    """The lattice of a convolution; the step is 1 where neighbours are read."""
    axes = [
        _axis(*each)
        for each in zip(spec.stride, spec.dilation, (spec.r, spec.s), (spec.out_h, spec.out_w), strict=True)
    ]
    (step_h, stride_h, dilation_h), (step_w, stride_w, dilation_w) = axes
    return Lattice((step_h, step_w), (stride_h, stride_w), (dilation_h, dilation_w))


def _axis(stride: int, dilation: int, taps: int, outputs: int) -> tuple[int, int, int]:
    # A single output, or a single tap, has no distance to others; what it would be does not matter.
    step = math.gcd(stride if outputs > 1 else 0, dilation if taps > 1 else 0) or 1
    return step, max(stride // step, 1), max(dilation // step, 1)
