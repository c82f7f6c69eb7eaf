"""Indices as an outer base plus an integer offset at every point of a loop nest.

TVM's `detect_linear_equation` knows sums of multiples only. Tap indices under a stride hold divisions and remainders of
loop variables; here the part that depends on the nest's loops alone is evaluated as NumPy integers, whatever its form.
"""

from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.tirx import IntImm, Var


@dataclass(frozen=True)
class IndexForm:
    """``base + offsets[point]``: `base` is free of the nest's loops, `offsets` broadcasts to the nest's extents."""

    base: tirx.Expr
    offsets: np.ndarray

    def at(self, offset: int) -> tirx.Expr:
        """The index expression for one offset."""
        return shifted(self.base, offset)


def shifted(base: tirx.Expr, offset: int) -> tirx.Expr:
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


def split_index(index: tirx.Expr, loops: list[Var], extents: list[int]) -> IndexForm | None:
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
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
}


def _split(e: tirx.Expr, grids: dict) -> tuple | None:
    """(outer expression or None, offsets) of `e`."""
    if isinstance(e, IntImm):
        return None, int(e)
    if isinstance(e, Var):
        grid = next((g for v, g in grids.items() if v.same_as(e)), None)
        return (e, 0) if grid is None else (None, grid)
    found = variables([e])
    if found and not any(v.same_as(u) for v in found for u in grids):
        return e, 0
    if isinstance(e, tirx.Cast):
        inner = _split(e.value, grids)
        if inner is None:
            return None
        base, offsets = inner
        return (None if base is None else tirx.Cast(e.ty.dtype, base)), offsets
    if isinstance(e, (tirx.Add, tirx.Sub)):
        return _split_sum(e, grids)
    if isinstance(e, tirx.Mul):
        left, right = _split(e.a, grids), _split(e.b, grids)
        if left is None or right is None:
            return None
        for (base, offsets), (other, factor) in ((left, right), (right, left)):
            if other is None and np.ndim(factor) == 0:
                return (None if base is None else base * int(factor)), offsets * int(factor)
        return (None, left[1] * right[1]) if left[0] is None and right[0] is None else None
    operation = _BINARY.get(type(e))
    if operation is None:
        return None if found else (e, 0)
    left, right = _split(e.a, grids), _split(e.b, grids)
    if left is None or right is None or left[0] is not None or right[0] is not None:
        return None
    return None, operation(left[1], right[1])


def _split_sum(e: tirx.Add | tirx.Sub, grids: dict) -> tuple | None:
    left, right = _split(e.a, grids), _split(e.b, grids)
    if left is None or right is None:
        return None
    sign = 1 if isinstance(e, tirx.Add) else -1
    if right[0] is None:
        base = left[0]
    elif left[0] is None:
        base = right[0] if sign == 1 else IntImm(str(e.ty.dtype), 0) - right[0]
    else:
        base = left[0] + right[0] if sign == 1 else left[0] - right[0]
    return base, left[1] + sign * right[1]
