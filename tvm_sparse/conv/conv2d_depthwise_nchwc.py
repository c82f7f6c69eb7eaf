"""TE compute of depthwise convolutions whose tensors lie in blocks of channels (`nchwc`)."""

from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, padded, prim_func
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import Columns, Layouts, blocked_arguments, output, views
from tvm_sparse.conv.spec import ConvSpec


def conv2d_depthwise_nchwc(spec: ConvSpec, layouts: Layouts, columns: Columns) -> tirx.PrimFunc:
    """The form of a depthwise convolution whose tensors all lie in blocks; the weight is (C / c, R, S, c).

    ``conv`` has axes (n, block of channels, y, x, channel), with so many `columns`, and so has the output. Padding is
    asked for where it is read.
    """
    arguments, channels = blocked_arguments(spec, layouts), layouts.channels
    shape = (spec.c // channels, spec.r, spec.s, channels)
    weight = arguments[WEIGHT] = te.placeholder(shape, FLOAT32, name=WEIGHT)
    read = views(layouts, arguments)["x"]
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    r, s = (te.reduce_axis((0, extent), name) for extent, name in ((spec.r, "r"), (spec.s, "s")))

    def conv_at(n: tirx.Expr, block: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        place = (y * st_h + r * dil_h, columns.pixel(x) * st_w + s * dil_w)
        value = padded(spec, read, n, block * channels + lane, *place)
        return te.sum(value * weight[block, r, s, lane], axis=[r, s])

    sums = layouts.shape("y", (*spec.output_shape[:3], columns.count))
    conv = te.compute(sums, conv_at, name="conv")

    def sum_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        return conv[n, tirx.floordiv(k, channels), y, x, tirx.floormod(k, channels)]

    return prim_func(arguments, output(spec, layouts, arguments, sum_at, columns))
