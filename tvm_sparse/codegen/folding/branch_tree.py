"""Which copy of folded code runs: a binary tree of branches on what the weights depend on.

The index of a weight is, in each of its four dimensions, an outer term (a tile's origin) plus offsets inside the nest.
Every origin that occurs gets code of its own. Telling origins apart, not the loops and threads they are computed from,
matters where one loop is fused of several: only its share of the weight may choose the code.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm.ir import Expr
from tvm.tirx import Bind, IfThenElse, IntImm, Stmt, Var

from tvm_sparse.codegen.tir.index_offsets import split_index, variables
from tvm_sparse.codegen.tir.tir_builder import integer, sequence, substituted
from tvm_sparse.errors import BuildError

# Points at which origins are evaluated, at most; far more than the loops and threads of any sensible schedule.
MAX_POINTS = 10_000_000
# A value of each of the expressions that choose the code.
Point = tuple[int, ...]


def branch_tree(points: Sequence[Point], keys: Sequence[Expr], emit: Callable[[Point], Stmt]) -> Stmt:
    """``emit(point)`` for that of `points` whose coordinates `keys` are, behind branches that halve what is left."""
    dimension = next((d for d in range(len(keys)) if len({point[d] for point in points}) > 1), None)
    if dimension is None:
        return emit(points[0])
    key, values = keys[dimension], sorted({point[dimension] for point in points})
    middle = values[len(values) // 2]
    below = branch_tree([point for point in points if point[dimension] < middle], keys, emit)
    above = branch_tree([point for point in points if point[dimension] >= middle], keys, emit)
    return IfThenElse(key < IntImm(str(key.ty.dtype), middle), below, above)


def specialized(body: Stmt, extents: dict[Var, int], marked: Callable[[Stmt], Stmt] = lambda stmt: stmt) -> Stmt:
    """A copy of `body`, `marked`, for every value of the variables of `extents`, each below its extent."""
    extents = {var: extent for var, extent in extents.items() if extent > 1}

    def copy(point: Point) -> Stmt:
        stmt = body
        for var, value in zip(extents, point, strict=True):
            stmt = substituted(stmt, var, integer(value))
        return marked(stmt)

    return branch_tree(list(itertools.product(*map(range, extents.values()))), list(extents), copy)


class Selection:
    """The origins of a weight index in function `name`.

    `bases` are the outer terms of its dimensions, `extents` those of the loops and threads around the nest. BuildError
    where a base depends on something else.
    """

    def __init__(self, name: str, bases: Sequence[Expr], extents: dict[Var, int]):
        outer = variables(list(bases))
        unknown = [v.name for v in outer if v not in extents]
        sizes = [extents.get(v, 1) for v in outer]
        if unknown or math.prod(sizes) > MAX_POINTS:
            raise BuildError(name, "the weights are selected by loops of unknown or huge extent", unknown or sizes)
        values = []
        for base in bases:
            form = split_index(base, outer, sizes)
            if form is None or not isinstance(form.base, IntImm):
                raise BuildError(name, "a weight index is not a function of loops and threads", base)
            values.append(np.broadcast_to(form.offsets + int(form.base), sizes).ravel())
        # Each origin that occurs, once, in ascending order.
        self.origins = [tuple(map(int, row)) for row in np.unique(np.stack(values, axis=1), axis=0)]
        self._bases = list(bases)

    def code(self, emit: Callable[[Point], Stmt]) -> Stmt:
        """``emit(origin)`` for every origin, behind a binary tree of branches."""
        prologue: list[Stmt] = []
        keys: list[Expr] = []
        for dimension, base in enumerate(self._bases):
            if len({origin[dimension] for origin in self.origins}) > 1:
                key = Var("origin", base.ty)
                prologue.append(Bind(key, base))
                keys.append(key)
            else:
                keys.append(base)
        tree = branch_tree(self.origins, keys, emit)
        return sequence([*prologue, tree])
