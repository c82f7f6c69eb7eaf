"""Which rows and columns of its padded input a convolution reads.

A 1x1 kernel with stride 2 reads every second row and column; kernels that stage their input in shared memory copy only
these. ResNet-50 has three such layers, whose whole input is four times what they read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_sparse.conv.spec import ConvSpec


@dataclass(frozen=True)
class InputFootprint:
    """Rows and columns that are read are multiples of `step`; all else counts in such steps. Tuples are (h, w).

    `halo` is how far the last tap of a window lies from the first.
    """

    step: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    halo: tuple[int, int]

    @classmethod
    def of(cls, spec: ConvSpec) -> InputFootprint:
        """The footprint of a convolution; the step is 1 where neighbours are read."""
        taps, outputs = (spec.r, spec.s), (spec.out_h, spec.out_w)
        (step_h, stride_h, dil_h), (step_w, stride_w, dil_w) = map(_axis, spec.stride, spec.dilation, taps, outputs)
        halo = ((spec.r - 1) * dil_h, (spec.s - 1) * dil_w)
        return cls((step_h, step_w), (stride_h, stride_w), (dil_h, dil_w), halo)

    def rows(self, outputs: int) -> int:
        """Rows that so many rows of outputs span."""
        return (outputs - 1) * self.stride[0] + self.halo[0] + 1

    def columns(self, outputs: int) -> int:
        """Columns that so many outputs of a row span."""
        return (outputs - 1) * self.stride[1] + self.halo[1] + 1


def _axis(stride: int, dilation: int, taps: int, outputs: int) -> tuple[int, int, int]:
    # A single output, or a single tap, has no distance to others; what it would be does not matter.
    step = math.gcd(stride if outputs > 1 else 0, dilation if taps > 1 else 0) or 1
    return step, max(stride // step, 1), max(dilation // step, 1)
