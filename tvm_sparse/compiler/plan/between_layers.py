"""What a model moves between its layers: the same for all kernels of theirs, and so a limit to what zeros gain."""

import math
from collections.abc import Iterable, Iterator

from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Op, Var

from tvm_sparse.frontend.passes.relax_graph import ELEMENTWISE, static_shape
from tvm_sparse.frontend.prepare import PreparedModel

# Operators that move nothing.
VIEWS = ("relax.expand_dims", "relax.flatten", "relax.reshape", "relax.squeeze")


def moved_bytes(model: PreparedModel) -> int:
    """Bytes that operators between layers write, and that they read of layers, inputs and constants.

    Operators that compute element by element one after the other are one kernel: what is between them stays there.
    """
    graph = model.graph
    of_layers = {var for group in model.groups for var in (*group.absorbed, group.result)}
    between = {
        var: value
        for var, value in graph.definitions.items()
        if var not in of_layers and isinstance(value, Call) and isinstance(value.op, Op) and value.op.name not in VIEWS
    }

    def is_elementwise(var: Var) -> bool:
        return var in between and between[var].op.name in ELEMENTWISE

    def vanishes(var: Var) -> bool:
        return is_elementwise(var) and bool(users := graph.users[var]) and all(map(is_elementwise, users))

    read = {each for value in between.values() for each in _tensors(value.args) if each not in between}
    return sum(map(_bytes, read)) + sum(_bytes(var) for var in between if not vanishes(var))


def _tensors(arguments: Iterable[Expr]) -> Iterator[Expr]:
    """Arguments, those of tuples one by one."""
    for each in arguments:
        yield from each.fields if isinstance(each, relax.Tuple) else [each]


def _bytes(value: Expr) -> int:
    """Of a tensor of known shape."""
    if not isinstance(value, Var | GenericConst) or (shape := static_shape(value)) is None:
        return 0
    return math.prod(shape) * value.ty.dtype.dtype.itemsize
