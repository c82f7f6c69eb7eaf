"""What a model moves between its layers: the same for all kernels of theirs, and so a limit to what zeros gain."""

import math
from collections.abc import Iterable, Iterator

from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Op, Var

from tvm_sparse.frontend.passes.relax_graph import static_shape
from tvm_sparse.frontend.prepare import PreparedModel

# Operators that move nothing.
VIEWS = ("relax.expand_dims", "relax.flatten", "relax.reshape", "relax.squeeze")


def moved_bytes(model: PreparedModel) -> int:
    """Bytes that operators between layers write, and that they read of layers, inputs and constants.

    What one of them reads of another counts once, where it is written: several of them often are one kernel.
    """
    definitions = model.graph.definitions
    of_layers = {var for group in model.groups for var in (*group.absorbed, group.result)}
    between = {
        var
        for var, value in definitions.items()
        if var not in of_layers and isinstance(value, Call) and isinstance(value.op, Op) and value.op.name not in VIEWS
    }
    read = (each for var in between for each in _tensors(definitions[var].args) if each not in between)
    return sum(map(_bytes, between)) + sum(map(_bytes, read))


def _tensors(arguments: Iterable[Expr]) -> Iterator[Expr]:
    """Arguments, those of tuples one by one."""
    for each in arguments:
        yield from each.fields if isinstance(each, relax.Tuple) else [each]


def _bytes(value: Expr) -> int:
    """Of a tensor of known shape."""
    if not isinstance(value, Var | GenericConst) or (shape := static_shape(value)) is None:
        return 0
    return math.prod(shape) * value.ty.dtype.dtype.itemsize
