"""Which rows and columns of its padded input a convolution reads.

A 1x1 kernel with stride 2 reads every second row and column; kernels that stage their input in shared memory copy only
these. ResNet-50 has three such layers, whose whole input is four times what they read.
"""

import math
from typing import NamedTuple

from tvm_sparse.conv.spec import ConvSpec


class AxisFootprint(NamedTuple):
    """Places that are read along an axis are multiples of `step`, 1 where neighbours are read; all else counts steps.

    `halo` is how far the last tap of a window lies from the first.
    """

    step: int
    stride: int
    dilation: int
    halo: int

    @classmethod
    def of(cls, stride: int, dilation: int, taps: int, outputs: int) -> "AxisFootprint":
        """The footprint along one axis."""
        # A single output, or a single tap, has no distance to others; what it would be does not matter.
        step = math.gcd(stride if outputs > 1 else 0, dilation if taps > 1 else 0) or 1
        dilation = max(dilation // step, 1)
        return cls(step, max(stride // step, 1), dilation, (taps - 1) * dilation)

    def span(self, outputs: int) -> int:
        """Places that so many outputs read, from the first to the last."""
        return (outputs - 1) * self.stride + self.halo + 1


def input_footprint(spec: ConvSpec) -> tuple[AxisFootprint, AxisFootprint]:
    """The footprints of a convolution along rows and columns (y, x)."""
    y, x = map(AxisFootprint.of, spec.stride, spec.dilation, (spec.r, spec.s), (spec.out_h, spec.out_w))
    return y, x
