"""How TVM's importer converts torch operators that it lacks or reads wrongly: functions of a node and the importer."""

import math
from collections.abc import Callable
from typing import Any

from tvm_sparse.frontend.torch.graph import argument

Converter = Callable[[Any, Any], Any]

# Operators that make tensors of numbers alone.
_CREATIONS = (
    "arange.default",
    "arange.start",
    "arange.start_step",
    "eye.default",
    "eye.m",
    "full.default",
    "linspace.default",
    "ones.default",
    "scalar_tensor.default",
    "zeros.default",
)
_SCATTERS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def converters() -> dict[str, Converter]:
    """Operator -> how it is converted."""
    from tvm import relax

    from tvm_sparse.frontend.torch.interpolate import INTERPOLATIONS, interpolate

    return {
        **dict.fromkeys(_CREATIONS, constant),
        **dict.fromkeys(INTERPOLATIONS, interpolate),
        "adaptive_max_pool2d.default": adaptive_max_pool,
        "adaptive_max_pool3d.default": adaptive_max_pool,
        "amax.default": _reduction(relax.op.max),
        "amin.default": _reduction(relax.op.min),
        "convolution.default": convolution,
        "prod.dim_int": _reduction(relax.op.prod),
        "scatter_add.default": scatter,
        "scatter_reduce.two": scatter,
    }


def constant(node: Any, importer: Any) -> Any:
    """What torch itself makes of a node without inputs."""
    from tvm import relax

    kwargs = {key: value for key, value in node.kwargs.items() if key not in ("device", "layout", "pin_memory")}
    made = node.target(*node.args, **kwargs).numpy()
    # Without its type, TVM makes short integers of long ones.
    return importer.block_builder.emit(relax.const(made, str(made.dtype)))


def _reduction(reduce: Any) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        dims = argument(node, "dim")
        dims = [dims] if isinstance(dims, int) else list(dims or ())
        return importer.block_builder.emit(reduce(importer.env[node.args[0]], dims or None, argument(node, "keepdim")))

    return convert


def adaptive_max_pool(node: Any, importer: Any) -> Any:
    """The largest of each window, one axis after the other; where windows differ in size, short ones repeat a line."""
    import numpy as np
    from tvm import relax

    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    counts = list(node.args[1])
    for axis, count in enumerate(counts, start=x.ty.ndim - len(counts)):
        size = int(x.ty.shape[axis])
        windows = [range(i * size // count, math.ceil((i + 1) * size / count)) for i in range(count)]
        longest = max(map(len, windows))
        lines = np.array([[min(line, lines[-1]) for line in range(lines[0], lines[0] + longest)] for lines in windows])
        x = emit(relax.op.take(x, relax.const(lines.reshape(-1), "int64"), axis))
        shape = [int(each) for each in x.ty.shape]
        x = emit(relax.op.reshape(x, [*shape[:axis], count, longest, *shape[axis + 1 :]]))
        x = emit(relax.op.max(x, [axis + 1]))
    # Where the largest was, `OPERATORS` lets nobody ask.
    return emit(relax.Tuple([x]))


def convolution(node: Any, importer: Any) -> Any:
    """A transposed one of volumes too."""
    from tvm import relax

    x, weight, bias = (importer.env.get(each) for each in node.args[:3])
    stride, padding, dilation, is_transposed, output_padding, groups = node.args[3:]
    if not is_transposed or len(stride) < 3:
        return importer._convolution(node)
    emit = importer.block_builder.emit
    y = relax.op.nn.conv3d_transpose(
        x, weight, stride, padding, output_padding, dilation, groups, "NCDHW", "IODHW", out_dtype="float32"
    )
    return emit(y) if bias is None else emit(relax.op.add(emit(y), emit(relax.op.reshape(bias, [1, -1, 1, 1, 1]))))


def scatter(node: Any, importer: Any) -> Any:
    """Adds to, or compares with, what is there."""
    from tvm import relax

    x, dim, index, source, *reduction = (importer.env.get(each, each) for each in node.args[:5])
    sizes = [int(size) for size in index.ty.shape]
    source = relax.op.strided_slice(source, list(range(len(sizes))), [0] * len(sizes), sizes)
    how = _SCATTERS[reduction[0] if reduction else "sum"]
    return importer.block_builder.emit(relax.op.scatter_elements(x, index, source, dim, how))
