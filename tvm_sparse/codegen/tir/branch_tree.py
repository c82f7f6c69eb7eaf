"""Which copy of folded code runs: a tree of branches on the outer parts of the weight's index.

The index of a weight is, in each of its four dimensions, an outer term (a tile's origin) plus offsets inside the nest.
Every origin that occurs gets code of its own. Telling origins apart, not the loops and threads they are computed from,
matters where one loop is fused of several: only its share of the weight may choose the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import tirx
from tvm.tirx import Bind, IfThenElse, IntImm, SeqStmt, Stmt, Var

from tvm_sparse.codegen.tir.index_offsets import split_index, variables
from tvm_sparse.codegen.tir.tir_builder import (
    integer,
    substituted,
)
from tvm_sparse.errors import BuildError

# Points at which origins are evaluated, at most; far more than the loops and threads of any sensible schedule.
MAX_POINTS = 10_000_000


class Selection:
    """The origins of a weight index.

    Parameters
    ----------
    name
        The function, for messages.
    bases
        The outer term of each dimension.
    extents
        Extents of the loops and threads around the nest.

    Raises
    ------
    BuildError
        An outer term depends on something whose extent is unknown.
    """

    def __init__(self, name: str, bases: Sequence[tirx.Expr], extents: dict[Var, int]):
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

    def code(self, emit: Callable[[tuple[int, ...]], tirx.Stmt]) -> tirx.Stmt:
        """``emit(origin)`` for every origin, behind a binary tree of branches."""
        prologue: list[Bind] = []
        keys: list[tirx.Expr] = []
        for dimension, base in enumerate(self._bases):
            if len({origin[dimension] for origin in self.origins}) > 1:
                key = Var("origin", base.ty)
                prologue.append(Bind(key, base))
                keys.append(key)
            else:
                keys.append(base)
        tree = _tree(self.origins, keys, emit)
        return SeqStmt([*prologue, tree]) if prologue else tree


def _tree(
    origins: list[tuple[int, ...]], keys: list[tirx.Expr], emit: Callable[[tuple[int, ...]], tirx.Stmt]
) -> tirx.Stmt:
    if len(origins) == 1:
        return emit(origins[0])
    dimension = next(d for d in range(len(keys)) if len({origin[d] for origin in origins}) > 1)
    values = sorted({origin[dimension] for origin in origins})
    middle = values[len(values) // 2]
    below = _tree([origin for origin in origins if origin[dimension] < middle], keys, emit)
    above = _tree([origin for origin in origins if origin[dimension] >= middle], keys, emit)
    return IfThenElse(keys[dimension] < IntImm(str(keys[dimension].ty.dtype), middle), below, above)


def selected(body: Stmt, chosen: tuple[tuple[Var, int], ...], marked: Callable[[Stmt], Stmt] = lambda s: s) -> Stmt:
    """A copy of `body`, `marked`, for every value of the variables `chosen`, (variable, extent) each."""
    if not chosen:
        return marked(body)
    (var, count), *others = chosen
    if count == 1:
        return selected(body, tuple(others), marked)

    def copy(index: int) -> Stmt:
        return selected(substituted(body, var, integer(index)), tuple(others), marked)

    return interval_tree(var, 0, count, copy)


def interval_tree(var: Var, start: int, stop: int, make: Callable[[int], Stmt]) -> Stmt:
    """``make(index)`` for the value of `var` among ``start`` to ``stop - 1``, behind a binary tree of branches."""
    if stop - start == 1:
        return make(start)
    middle = (start + stop) // 2
    below, above = interval_tree(var, start, middle, make), interval_tree(var, middle, stop, make)
    return IfThenElse(var < integer(middle), below, above)
