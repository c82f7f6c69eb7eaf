"""Average the samples of regions of interest, but for those outside of the image, which are zeros.

Without a sampling ratio a region has about a sample for each pixel of it, however far it reaches: TVM takes all of
them, for minutes where a region is a thousand images wide.
"""

import math
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Call, Expr
from tvm.topi.cpp.utils import bilinear_sample_nchw


def _legalized(builder: relax.BlockBuilder, call: Call) -> Expr:
    """TVM's own where the samples' maximum is asked for, or NHWC."""
    attrs = call.attrs
    if (attrs.mode, attrs.layout) != ("avg", "NCHW"):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(_averages, *call.args, attrs, primfunc_name_hint="roi_align")


def _averages(image: te.Tensor, regions: te.Tensor, attrs: Any) -> te.Tensor:
    """Shape (regions, channels, rows, columns)."""
    sides, bins = [int(side) for side in image.shape[2:]], [int(count) for count in attrs.pooled_size]

    def average(region: Expr, channel: Expr, row: Expr, column: Expr) -> Expr:
        left, top, right, bottom = corners = [regions[region, at] * attrs.spatial_scale for at in range(1, 5)]
        rows = _Samples(top, bottom, row, bins[0], sides[0], attrs)
        columns = _Samples(left, right, column, bins[1], sides[1], attrs)
        pixels = (tirx.Cast("int32", regions[region, 0]), channel, rows.pixel, columns.pixel)
        value = bilinear_sample_nchw(image, pixels, sides[0] - 1, sides[1] - 1)
        share = value / tirx.Cast(image.dtype, te.max(rows.count * columns.count, 1))
        # ONNX Runtime refuses a region that is not finite.
        none = tirx.Select(
            tirx.all(*map(tirx.isfinite, corners)), tirx.const(0, image.dtype), tirx.const(math.nan, image.dtype)
        )
        share = tirx.if_then_else(tirx.all(rows.is_seen, columns.is_seen), share, none)
        return te.sum(share, axis=[rows.axis, columns.axis])

    return te.compute((regions.shape[0], image.shape[1], *bins), average, name="roi_align")


class _Samples:
    """The samples of a bin along one axis.

    `count` is how many there are, `axis` runs along those that may count, `pixel` is where one of them is read, and
    `is_seen` whether it is one, and no more than a pixel outside of the image.

    * `low`, `high`: where the region begins and ends.
    * `place`, `bins`: which of how many bins of it this is.
    * `side`: pixels of the image.
    * `attrs`: of the operator.
    """

    def __init__(self, low: Expr, high: Expr, place: Expr, bins: int, side: int, attrs: Any):
        dtype = low.ty.dtype
        size = high - low if attrs.aligned else te.max(high - low, tirx.const(1, dtype))
        bin_size = size / tirx.const(bins, dtype)
        start = low + tirx.Cast(dtype, place) * bin_size
        if attrs.sample_ratio > 0:
            self.count, first, most = tirx.const(attrs.sample_ratio, dtype), tirx.const(0, dtype), attrs.sample_ratio
        else:
            self.count = te.ceil(bin_size)
            # The one before the first that is seen, or the one before that, as numbers are rounded.
            first = te.max(te.floor((-1 - start) * self.count / bin_size - 1), tirx.const(0, dtype))
            # Two or more are half a pixel apart, or farther. There must be one: else nothing writes the sum.
            left = te.max(te.min(self.count - first, tirx.const(2 * side + 8, dtype)), tirx.const(1, dtype))
            most = tirx.Cast("int32", left)
        self.axis = te.reduce_axis((0, most))
        index = first + tirx.Cast(dtype, self.axis)
        pixel = start + (index + tirx.const(0.5, dtype)) * bin_size / self.count
        # Of NaN none is.
        self.is_seen = tirx.all(index < self.count, pixel >= -1, pixel <= side)
        self.pixel = te.min(te.max(pixel, 0), tirx.const(side - 1, dtype))


# Operator -> what makes a function of it.
ROI_ALIGN = {"relax.vision.roi_align": _legalized}
