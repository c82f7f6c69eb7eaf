"""Let no division of integers end the process.

Processors trap where an integer is divided by 0, and the smallest by -1. ONNX leaves the first undefined; NumPy, and
with it ONNX's reference implementation, gives 0, and wraps the second around, and so do the modules here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild, static_shape

_QUOTIENTS = ("relax.divide", "relax.floor_divide")
_REMAINDERS = ("relax.mod", "relax.floor_mod")


def divide_integers(module: tvm.IRModule) -> tvm.IRModule:
    """`module` whose integers are divided by neither 0 nor -1: what comes of these is chosen."""
    edits = {
        var: _Edit(module, var, value).bindings()
        for var, value in Graph.of(module).definitions.items()
        if any(is_call(value, name) for name in (*_QUOTIENTS, *_REMAINDERS)) and _may_trap(value)
    }
    return rebuild(module, edits) if edits else module


def _may_trap(value: Call) -> bool:
    """Whether integers are divided by numbers that are not known, or are 0 or -1."""
    divisor = value.args[1]
    if np.dtype(str(value.ty.dtype)).kind not in "iu":
        return False
    return not isinstance(divisor, GenericConst) or bool(np.isin(divisor.value.numpy(), (0, -1)).any())


class _Edit:
    """The bindings that take the place of ``var = x / divisor``."""

    def __init__(self, module: tvm.IRModule, var: Var, value: Call):
        self._module, self._var, self._value = module, var, value
        self._dtype = str(value.ty.dtype)
        self._found: list[tuple[Var, Expr]] = []

    def bindings(self) -> list[tuple[Var, Expr]]:
        """In their order, `var` last.

        By arithmetic alone: TVM simplifies a divisor that is chosen within what is chosen by the same condition, and
        then divides before it chooses.
        """
        op, (x, divisor) = relax.op, self._value.args
        is_zero = self._is(divisor, 0)
        safe = self._bind(divisor, op.add, divisor, is_zero)
        factor = self._bind(divisor, op.subtract, relax.const(1, self._dtype), is_zero)
        if not self._dtype.startswith("u"):
            # A division by -1 becomes one by 1, whose result gets the other sign.
            is_minus = self._is(divisor, -1)
            twice = self._bind(divisor, op.add, is_minus, is_minus)
            safe = self._bind(divisor, op.add, safe, twice)
            factor = self._bind(divisor, op.subtract, factor, twice)
        result = self._bind(self._var, self._operator, x, safe)
        return [*self._found, (self._var, op.multiply(result, factor))]

    def _is(self, divisor: Expr, number: int) -> Var:
        """1 where the divisor is `number`, else 0."""
        found = self._bind(divisor, relax.op.equal, divisor, relax.const(number, self._dtype), dtype="bool")
        return self._bind(divisor, relax.op.astype, found, self._dtype)

    def _operator(self, *arguments: Expr) -> Expr:
        """The division of other numbers."""
        return Call(self._value.op, list(arguments), self._value.attrs)

    def _bind(self, like: Expr, operator: Callable[..., Expr], *arguments: Any, dtype: str = "") -> Var:
        """A variable of the shape of `like`, bound to what the operator makes of its arguments."""
        shape = static_shape(like)
        assert shape is not None, "modules are imported with fixed shapes"
        var = new_var(self._module, self._var, "division", shape, dtype or self._dtype)
        self._found.append((var, operator(*arguments)))
        return var
