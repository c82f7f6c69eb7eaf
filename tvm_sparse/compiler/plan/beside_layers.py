"""What a model does beside its layers, the same for all kernels of theirs, and so a limit to what zeros gain.

That is products of matrices that are no layers of a plan, and what is moved between layers.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator

import numpy as np
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Op, Var

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.frontend.passes.relax_graph import ELEMENTWISE, is_call, static_shape
from tvm_sparse.frontend.prepare import PreparedModel

# What they are part of: no zeros that stay help those of tensors, pruning helps the others.
TENSORS = "products of two tensors, as in attention, which zeros do not help"
RECURRENT = "recurrent layers (LSTM, GRU, RNN) without zeros"
LINEAR = "linear layers without zeros"
# Longer products take a multiple of the time of so many rows.
MOST_ROWS = 1024
# Operators that move nothing.
VIEWS = ("relax.expand_dims", "relax.flatten", "relax.reshape", "relax.squeeze")


def others_us(model: PreparedModel, dense_us: Callable[[ConvSpec], float]) -> dict[str, float]:
    """What products of matrices are part of -> their microseconds; `dense_us` estimates those of a linear layer."""
    ours = {var for group in model.groups for var in (*group.absorbed, group.result)}
    products = {
        var: value
        for var, value in model.graph.definitions.items()
        if is_call(value, "relax.matmul") and var not in ours and all(map(static_shape, (var, *value.args)))
    }
    recurrent, found = _recurrent(model, products), defaultdict[str, float](float)
    for var, value in products.items():
        is_weight = isinstance(value.args[1], GenericConst) or isinstance(value.args[0], GenericConst)
        kind = TENSORS if not is_weight else RECURRENT if var in recurrent else LINEAR
        found[kind] += _product_us(var, value, dense_us)
    return dict(found)


def _product_us(var: Var, value: Call, dense_us: Callable[[ConvSpec], float]) -> float:
    shape, c = static_shape(var) or (), (static_shape(value.args[0]) or ())[-1]
    k = shape[-1] if (static_shape(value.args[1]) or ())[1:] else 1
    rows, dtype = math.prod(shape) // max(k, 1), str(var.ty.dtype)
    if not rows * k * c:
        return 0.0
    n = min(rows, MOST_ROWS)
    return rows / n * dense_us(ConvSpec(n, c, 1, 1, k, 1, 1, dtype=dtype if dtype in STORAGE else FLOAT32))


def _recurrent(model: PreparedModel, products: dict[Var, Call]) -> set[Var]:
    """Products with a weight that what they are computed of was multiplied by before, and all others with it."""
    weights = {var: _key(value.args[1]) for var, value in products.items() if isinstance(value.args[1], GenericConst)}
    shared = {weight for weight, count in Counter(weights.values()).items() if count > 1}
    steps: set[Hashable] = set()
    # Variable -> the shared weights that it depends on.
    behind: defaultdict[Var, set[Hashable]] = defaultdict(set)
    for var in model.graph.definitions if shared else ():
        weight = weights.get(var)
        if weight in shared and weight not in behind[var]:
            behind[var].add(weight)
        elif weight in shared:
            steps.add(weight)
        for user in model.graph.users[var]:
            behind[user] |= behind[var]
    return {var for var, weight in weights.items() if weight in steps}


def _key(weight: GenericConst) -> Hashable:
    """What tells weights apart: each step of a layer may have a copy of its own."""
    array = np.from_dlpack(weight.value)
    return array.shape, array[:1].tobytes(), array[-1:].tobytes()


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
