"""Make the ReLUs, clips, maxima and minima that no convolution took in keep NaN, as those that one did."""

from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.ir import Expr, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild

_PLACES = ("relax.argmax", "relax.argmin")
# Operators of two tensors, and whether an element of the first is farther.
_EXTREMES = {"relax.maximum": relax.op.greater, "relax.minimum": relax.op.less}


def keep_nan(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with each ``relu(x)`` as ``where(x < 0, 0, x)``, and ``clip(x)`` as that with an upper bound too.

    And ``maximum(x, y)`` as ``where(x > y or isnan(x), x, y)``. TVM's own give the other one for NaN. The place of an
    extreme is 0 where all elements are NaN or the farthest infinity: TVM begins with -1, and finds none. Run it last.
    """
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        if is_call(value, "relax.nn.relu"):
            edits[var] = _bounded(module, var, value.args[0], [(relax.op.less, 0.0)])
        elif is_call(value, "relax.clip") and "float" in str(value.args[0].ty.dtype):
            x, least, most = value.args
            edits[var] = _bounded(module, var, x, [(relax.op.less, least.value), (relax.op.greater, most.value)])
        elif any(is_call(value, name) for name in _EXTREMES) and "float" in str(var.ty.dtype):
            edits[var] = _extreme(module, var, value.args[0], value.args[1], _EXTREMES[value.op.name])
        elif any(is_call(value, name) for name in _PLACES):
            place = new_var(module, var, f"{var.name}_place", var.ty.shape, str(var.ty.dtype))
            edits[var] = [(place, value), (var, relax.op.maximum(place, relax.const(0, str(var.ty.dtype))))]
    return rebuild(module, edits)


def _extreme(
    module: tvm.IRModule, var: Var, x: Expr, y: Expr, is_farther: Callable[..., Expr]
) -> list[tuple[Var, Expr]]:
    """`var` as `x` where that is farther than `y` or NaN, else as `y`."""
    farther, either = (new_var(module, var, f"{var.name}_{name}", var.ty.shape, "bool") for name in ("farther", "x"))
    missing = new_var(module, var, f"{var.name}_missing", x.ty.shape, "bool")
    bindings = [(farther, is_farther(x, y)), (missing, relax.op.isnan(x))]
    return [*bindings, (either, relax.op.logical_or(farther, missing)), (var, relax.op.where(either, x, y))]


def _bounded(
    module: tvm.IRModule, var: Var, x: Expr, bounds: Sequence[tuple[Callable[..., Expr], float]]
) -> list[tuple[Var, Expr]]:
    """`var` as `x`, but each bound where `x` is beyond it."""
    bindings, shape, dtype = list[tuple[Var, Expr]](), x.ty.shape, str(x.ty.dtype)
    for is_beyond, number in bounds:
        bound = relax.const(number, dtype)
        beyond = new_var(module, var, f"{var.name}_beyond", shape, "bool")
        kept = new_var(module, var, f"{var.name}_kept", shape, dtype)
        bindings += [(beyond, is_beyond(x, bound)), (kept, relax.op.where(beyond, bound, x))]
        x = kept
    return [*bindings[:-1], (var, bindings[-1][1])]
