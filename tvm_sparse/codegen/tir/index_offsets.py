"""Indices as an outer base plus an integer offset at every point of a loop nest.

TVM's `detect_linear_equation` knows sums of multiples only. Tap indices under a stride hold divisions and remainders of
loop variables; here the part that depends on the nest's loops alone is evaluated as NumPy integers, whatever its form.
"""

from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import IntImm, Var


@dataclass(frozen=True)
class IndexForm:
    """``base + offsets[point]``: `base` is free of the nest's loops, `offsets` broadcasts to the nest's extents."""

    base: Expr
    offsets: np.ndarray

    def at(self, offset: int) -> Expr:
        """The index expression for one offset."""
        return shifted(self.base, offset)


def shifted(base: Expr, offset: int) -> Expr:
    """``base + offset``, simplified."""
    dtype = str(base.ty.dtype)
    if isinstance(base, IntImm):
        return IntImm(dtype, int(base) + offset)
    return base if offset == 0 else tirx.Add(base, IntImm(dtype, offset))


def variables(expressions: list) -> list[Var]:
    """Scalar variables in `expressions`, each once, in order of appearance."""
    found: list[Var] = []

    def visit(var: Var) -> None:
        if not tirx.buffer.is_buffer_var(var) and not any(var.same_as(other) for other in found):
            found.append(var)

    for expression in expressions:
        tvm_ffi.structural_walk(expression, (Var, visit))
    return found


def split_index(index: Expr, loops: list[Var], extents: list[int]) -> IndexForm | None:
    """Split `index` into a base and offsets over `loops`; None where loops and outer variables mix irreducibly."""
    grids = {
        var: np.arange(extent).reshape([-1 if i == j else 1 for j in range(len(extents))])
        for i, (var, extent) in enumerate(zip(loops, extents, strict=True))
    }
    parts = _split(index, grids)
    if parts is None:
        return None
    base, offsets = parts
    if base is None:
        base = IntImm(str(index.ty.dtype), 0)
    return IndexForm(base, np.asarray(offsets).reshape((1,) * (len(extents) - np.ndim(offsets)) + np.shape(offsets)))


_BINARY = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
}


def _split(e: Expr, grids: dict) -> tuple | None:
    """(outer expression or None, offsets) of `e`."""
    if isinstance(e, IntImm):
        return None, int(e)
    if isinstance(e, Var):
        grid = next((g for v, g in grids.items() if v.same_as(e)), None)
        return (e, 0) if grid is None else (None, grid)
    operation = _BINARY.get(type(e))
    if operation is None:
        return _split_other(e, grids)
    left, right = _split(e.a, grids), _split(e.b, grids)
    if left is None or right is None:
        return None
    if left[0] is None and right[0] is None:
        return None, operation(left[1], right[1])
    if not np.ndim(left[1]) and not np.ndim(right[1]):
        # Free of loops, whose offsets are arrays.
        return e, 0
    if isinstance(e, (tirx.Add, tirx.Sub)):
        return _outer_sum(e, left[0], right[0]), operation(left[1], right[1])
    if isinstance(e, tirx.Mul):
        for (base, offsets), (other, factor) in ((left, right), (right, left)):
            if other is None and np.ndim(factor) == 0:
                return base * int(factor), offsets * int(factor)
    return None


def _split_other(e: Expr, grids: dict) -> tuple | None:
    """The same of an expression that is no binary one."""
    found = variables([e])
    if found and not any(v.same_as(u) for v in found for u in grids):
        return e, 0
    if not isinstance(e, tirx.Cast):
        return None if found else (e, 0)
    inner = _split(e.value, grids)
    if inner is None:
        return None
    base, offsets = inner
    return (None if base is None else tirx.Cast(e.ty.dtype, base)), offsets


def _outer_sum(e: tirx.Add | tirx.Sub, left: Expr | None, right: Expr | None) -> Expr:
    """The outer expression of `e` from those of its sides, of which there is one at least."""
    if right is None:
        return left
    if isinstance(e, tirx.Add):
        return right if left is None else left + right
    return (IntImm(str(e.ty.dtype), 0) if left is None else left) - right
