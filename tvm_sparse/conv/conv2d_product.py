"""TE compute of a linear layer: a convolution by one tap, of maps of one pixel, is a product of two matrices."""

from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, epilogue, prim_func
from tvm_sparse.conv.spec import ConvSpec


def is_linear(spec: ConvSpec) -> bool:
    """Whether a convolution is what a linear layer becomes, whatever its epilogue."""
    return (spec.h, spec.w, spec.r, spec.s, spec.groups) == (1, 1, 1, 1, 1) and not any(spec.padding)


def conv2d_product(spec: ConvSpec, filters: int = 0, images: int = 1) -> tirx.PrimFunc:
    """The form with axes (n, k) of a convolution that `is_linear`; arguments as `conv2d`.

    With `filters`, ``conv`` has axes (n, block, filter): the weight is (K / filters, C, filters), blocks rounded up, as
    `in_blocks` gives it, and rows are rounded up to `images`, the last of them computed more than once.
    """
    arguments = arguments_of(spec)
    c = te.reduce_axis((0, spec.c), "c")
    x = arguments["x"]
    if filters:
        blocks, rows = -(-spec.k // filters), -(-spec.n // images) * images
        weight = arguments[WEIGHT] = te.placeholder((blocks, spec.c, filters), spec.dtype, name=WEIGHT)
        conv = te.compute(
            (rows, blocks, filters),
            lambda n, block, f: te.sum(x[_within(n, spec.n, rows), c, 0, 0] * weight[block, c, f], axis=c),
            name="conv",
        )
    else:
        weight = arguments[WEIGHT]
        conv = te.compute((spec.n, spec.k), lambda n, k: te.sum(x[n, c, 0, 0] * weight[k, c, 0, 0], axis=c), name="conv")

    def out_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x_: tirx.Expr) -> tirx.Expr:
        value = conv[n, tirx.floordiv(k, filters), tirx.floormod(k, filters)] if filters else conv[n, k]
        return epilogue(spec, arguments, value, (n, k, y, x_))

    return prim_func(arguments, te.compute(spec.output_shape, out_at, name="out"))


def _within(n: tirx.Expr, images: int, rows: int) -> tirx.Expr:
    return n if rows == images else tirx.min(n, images - 1)
