"""TE compute of a linear layer: a convolution by one tap, of maps of one pixel, is a product of two matrices."""

from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, epilogue, prim_func, widened
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec


def is_linear(spec: ConvSpec) -> bool:
    """Whether a convolution is what a linear layer becomes, whatever its epilogue."""
    return (spec.h, spec.w, spec.r, spec.s, spec.groups) == (1, 1, 1, 1, 1) and not any(spec.padding)


def conv2d_product(spec: ConvSpec, filters: int, images: int) -> tirx.PrimFunc:
    """The form of a convolution that `is_linear` with blocks of `filters`; arguments as `conv2d`, but for the weight.

    That is (K / filters, C, filters), rounded up. ``conv`` has axes (n, block, filter), with n rounded up to `images`:
    what lies behind the last image repeats it.
    """
    arguments = arguments_of(spec)
    blocks, rows = -(-spec.k // filters), -(-spec.n // images) * images
    weight = arguments[WEIGHT] = te.placeholder((blocks, spec.c, filters), FLOAT32, name=WEIGHT)
    c = te.reduce_axis((0, spec.c), "c")

    def conv_at(n: tirx.Expr, block: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        image = n if rows == spec.n else tirx.min(n, spec.n - 1)
        return te.sum(widened(arguments["x"][image, c, 0, 0]) * weight[block, c, lane], axis=c)

    conv = te.compute((rows, blocks, filters), conv_at, name="conv")

    def out_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        value = conv[n, tirx.floordiv(k, filters), tirx.floormod(k, filters)]
        return epilogue(spec, arguments, value, (n, k, y, x))

    return prim_func(arguments, te.compute(spec.output_shape, out_at, name="out"))
