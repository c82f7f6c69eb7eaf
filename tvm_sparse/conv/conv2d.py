"""ConvSpec -> TE -> PrimFunc: the dense form of a convolution, before scheduling and folding.

Three computes of the same function, all with stages named ``pack``, ``conv`` and ``out``:

`conv2d` is the textbook loop nest over (n, k, y, x, c, r, s) on a zero-padded input.

`conv2d_tiles` suits thread blocks. The padded input is cut into tiles of columns that overlap, each of them aligned, so
that shared memory is filled by wide copies; rows and columns are rounded up to whole tiles.

`conv2d_rows` suits CPU vectors. The padded input is first split by stride phase and its rows laid end to end, so
that for any stride and dilation one filter tap of a whole group of output rows is one contiguous run of floats:
full vectors on maps of 7x7 as on maps of 224x224, no strided loads. Columns between rows are computed and dropped.
"""

from __future__ import annotations

from tvm import te, tirx

from tvm_sparse.conv.spec import ConvSpec

# Name of the weight's argument in every PrimFunc made here.
WEIGHT = "weight"


def arguments_of(spec: ConvSpec) -> dict[str, te.Tensor]:
    """Placeholders in the order of every kernel's arguments: x, weight, [bias], [residual]."""
    arguments = {
        "x": te.placeholder(spec.input_shape, spec.dtype, name="x"),
        WEIGHT: te.placeholder(spec.weight_shape, spec.dtype, name=WEIGHT),
    }
    if spec.bias:
        arguments["bias"] = te.placeholder((spec.k,), spec.dtype, name="bias")
    if spec.residual:
        arguments["residual"] = te.placeholder(spec.output_shape, spec.dtype, name="residual")
    return arguments


def _padded(spec: ConvSpec, x: te.Tensor, n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x_: tirx.Expr) -> tirx.Expr:
    """Element (y, x_) of the zero-padded input, zero also beyond the bottom and right padding."""
    top, left = spec.padding[0], spec.padding[1]
    conditions = []
    if top:
        conditions.append(y >= top)
    conditions.append(y < top + spec.h)
    if left:
        conditions.append(x_ >= left)
    conditions.append(x_ < left + spec.w)
    return tirx.if_then_else(tirx.all(*conditions), x[n, c, y - top, x_ - left], tirx.const(0.0, spec.dtype))


def epilogue(spec: ConvSpec, arguments: dict[str, te.Tensor], value: tirx.Expr, index: tuple) -> tirx.Expr:
    if spec.bias:
        value = value + arguments["bias"][index[1]]
    if spec.residual:
        value = value + arguments["residual"][index]
    return relu(value, spec.dtype) if spec.relu else value


def relu(value: tirx.Expr, dtype: str) -> tirx.Expr:
    """``max(value, 0)`` that keeps NaN, as torch and ONNX Runtime do; a plain maximum gives 0 for it."""
    zero = tirx.const(0.0, dtype)
    return tirx.Select(value < zero, zero, value)


def prim_func(arguments: dict[str, te.Tensor], out: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func([*arguments.values(), out]).with_attr("global_symbol", "main")


def reduce_axes(spec: ConvSpec) -> list[tirx.IterVar]:
    _, channels, r, s = spec.weight_shape
    return [te.reduce_axis((0, extent), name) for extent, name in ((channels, "c"), (r, "r"), (s, "s"))]


def conv2d(spec: ConvSpec) -> tirx.PrimFunc:
    """The textbook form; arguments x, weight, [bias], [residual], y as `ConvSpec` shapes them."""
    arguments = arguments_of(spec)
    top, left, bottom, right = spec.padding
    x = arguments["x"]
    packed = x
    if any(spec.padding):
        packed = te.compute(
            (spec.n, spec.c, spec.h + top + bottom, spec.w + left + right),
            lambda n, c, y, x_: _padded(spec, x, n, c, y, x_),
            name="pack",
        )
    c, r, s = reduce_axes(spec)
    channels, filters = spec.weight_shape[1], spec.k // spec.groups
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    conv = te.compute(
        spec.output_shape,
        lambda n, k, y, x_: te.sum(
            packed[n, channel_of(k, filters, channels, c), y * st_h + r * dil_h, x_ * st_w + s * dil_w]
            * arguments[WEIGHT][k, c, r, s],
            axis=[c, r, s],
        ),
        name="conv",
    )
    out = te.compute(spec.output_shape, lambda *i: epilogue(spec, arguments, conv[i], i), name="out")
    return prim_func(arguments, out)


def channel_of(k: tirx.Expr, filters: int, channels: int, c: tirx.Expr) -> tirx.Expr:
    """Input channel that filter k reads at its c-th channel."""
    return tirx.floordiv(k, filters) * channels + c
