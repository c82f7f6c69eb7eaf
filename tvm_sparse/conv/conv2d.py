"""The dense form of a convolution, before scheduling and folding: ConvSpec -> TE -> PrimFunc.

`conv2d` is the textbook loop nest over (n, k, y, x, c, r, s) on a zero-padded input; beside it is what its other forms
(`conv2d_rows`, `conv2d_tiles`, `conv2d_npq`, `conv2d_split_k`) share with it. All compute the same function, in stages
named ``pack``, ``conv`` and ``out``. Arithmetic is float32: half-precision tensors are widened as they are read, in
``pack`` or ``conv``, and ``out`` rounds.
"""

from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range
from tvm.s_tir import SBlock
from tvm.tirx import BufferRegion

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec

# Name of the weight's argument in every PrimFunc made here.
WEIGHT = "weight"


def conv2d(spec: ConvSpec) -> tirx.PrimFunc:
    """The textbook form; arguments x, weight, [bias], [residual], y as `ConvSpec` shapes them."""
    arguments = arguments_of(spec)
    x = packed = arguments["x"]
    if any(spec.padding) or spec.dtype != FLOAT32:
        packed = te.compute(spec.padded_shape, lambda n, c, y, x_: padded(spec, x, n, c, y, x_), name="pack")
    c, r, s = reduce_axes(spec)
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    conv = te.compute(
        spec.output_shape,
        lambda n, k, y, x_: te.sum(
            packed[n, channel_of(spec, k, c), y * st_h + r * dil_h, x_ * st_w + s * dil_w]
            * arguments[WEIGHT][k, c, r, s],
            axis=[c, r, s],
        ),
        name="conv",
    )
    out = te.compute(spec.output_shape, lambda *i: epilogue(spec, arguments, conv[i], i), name="out")
    return prim_func(arguments, out)


def arguments_of(spec: ConvSpec) -> dict[str, te.Tensor]:
    """Placeholders in the order of every kernel's arguments: x, weight, [bias], [residual]."""
    arguments = {
        "x": te.placeholder(spec.input_shape, spec.dtype, name="x"),
        WEIGHT: te.placeholder(spec.weight_shape, FLOAT32, name=WEIGHT),
    }
    if spec.bias:
        arguments["bias"] = te.placeholder((spec.k,), spec.dtype, name="bias")
    if spec.residual:
        arguments["residual"] = te.placeholder(spec.output_shape, spec.dtype, name="residual")
    return arguments


def input_at(spec: ConvSpec, x: te.Tensor, n: tirx.Expr, c: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
    """An element of the input, of which volumes have their maps one behind the other: so are channels of neighbours.

    That is where each tap's map is there, next to the one before, and channels are not in groups.
    """
    volumes = spec.volumes
    if volumes is None:
        return x[n, c, row, column]
    channels = spec.c // volumes.taps
    first = tirx.floordiv(n, volumes.outputs) * volumes.size + tirx.floormod(n, volumes.outputs) * volumes.stride
    return x[first - volumes.before + tirx.floordiv(c, channels), tirx.floormod(c, channels), row, column]


def prim_func(arguments: dict[str, te.Tensor], out: te.Tensor) -> tirx.PrimFunc:
    """The function ``main`` of the arguments and the output."""
    return te.create_prim_func([*arguments.values(), out]).with_attr("global_symbol", "main")


def padded(spec: ConvSpec, x: te.Tensor, n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x_: tirx.Expr) -> tirx.Expr:
    """Element (y, x_) of the zero-padded input, float32, zero also beyond the bottom and right padding."""
    top, left = spec.padding[0], spec.padding[1]
    conditions = [y >= top] if top else []
    conditions.append(y < top + spec.h)
    conditions += [x_ >= left] if left else []
    conditions.append(x_ < left + spec.w)
    return tirx.if_then_else(
        tirx.all(*conditions), widened(input_at(spec, x, n, c, y - top, x_ - left)), tirx.const(0.0, FLOAT32)
    )


def widened(value: tirx.Expr) -> tirx.Expr:
    """An element of a tensor, whatever its storage type, as a float32 number."""
    return value.astype(FLOAT32)


def reduce_axes(spec: ConvSpec) -> list[tirx.IterVar]:
    """The axes (c, r, s) that a convolution sums over."""
    _, channels, r, s = spec.weight_shape
    return [te.reduce_axis((0, extent), name) for extent, name in ((channels, "c"), (r, "r"), (s, "s"))]


def channel_of(spec: ConvSpec, k: tirx.Expr, c: tirx.Expr) -> tirx.Expr:
    """Input channel that filter k reads at its c-th channel."""
    return tirx.floordiv(k, spec.k // spec.groups) * spec.weight_shape[1] + c


def epilogue(spec: ConvSpec, arguments: Mapping[str, te.Tensor], value: tirx.Expr, index: Sequence) -> tirx.Expr:
    """`value`, float32, with bias, residual and ReLU, as stored to output element `index` = (n, k, y, x)."""
    if spec.bias:
        value = value + widened(arguments["bias"][index[1]])
    if spec.residual:
        value = value + widened(arguments["residual"][tuple(index)])
    value = relu(value, FLOAT32) if spec.relu else value
    if spec.is_clipped:
        most = tirx.const(spec.relu_max, FLOAT32)
        # A plain minimum gives `most` for NaN.
        value = tirx.Select(value > most, most, value)
    return value if spec.dtype == FLOAT32 else tirx.Cast(spec.dtype, value)


def relu(value: tirx.Expr, dtype: str) -> tirx.Expr:
    """``max(value, 0)`` that keeps NaN, as torch and ONNX Runtime do; a plain maximum gives 0 for it."""
    zero = tirx.const(0.0, dtype)
    return tirx.Select(value < zero, zero, value)


def reading_all_of(func: tirx.PrimFunc, reader: str, stage: str, axes: int) -> tirx.PrimFunc:
    """`func`, its block `reader` declared to read the last `axes` axes of `stage` whole.

    Scheduling computes of a stage only what its readers declare to read.
    """

    def region(read: BufferRegion) -> BufferRegion:
        whole = [Range(0, extent) for extent in read.source.ty.shape[-axes:]]
        return BufferRegion(read.source, [*read.region[:-axes], *whole])

    def block(node: SBlock) -> SBlock:
        found = [i for i, read in enumerate(node.reads) if read.source.name == stage]
        if node.name_hint != reader or not found:
            return node
        reads = [region(read) if i in found else read for i, read in enumerate(node.reads)]
        rest = (node.writes, node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers)
        return SBlock(node.iter_vars, reads, *rest, {**node.annotations, "explicit_read_region": found})

    return func.with_body(tvm_ffi.structural_map(func.body, (SBlock, block), order="post"))
