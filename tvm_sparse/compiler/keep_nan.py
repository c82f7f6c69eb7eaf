"""Make the ReLUs and clips that no convolution took in keep NaN, as those that one did."""

import tvm
from tvm import relax
from tvm.ir import Call, Expr, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild


def keep_nan(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with each ``relu(x)`` as ``where(x < 0, 0, x)`` and ``clip(x)`` as ``where(isnan(x), x, clip(x))``.

    TVM's own give a bound for NaN. Run it last.
    """
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        if is_call(value, "relax.nn.relu"):
            edits[var] = _relu(module, var, value)
        elif is_call(value, "relax.clip") and "float" in str(value.args[0].ty.dtype):
            edits[var] = _clip(module, var, value)
    return rebuild(module, edits)


def _relu(module: tvm.IRModule, var: Var, value: Call) -> list[tuple[Var, Expr]]:
    x = value.args[0]
    zero = relax.const(0, str(x.ty.dtype))
    is_below = new_var(module, var, f"{var.name}_below", x.ty.shape, "bool")
    return [(is_below, relax.op.less(x, zero)), (var, relax.op.where(is_below, zero, x))]


def _clip(module: tvm.IRModule, var: Var, value: Call) -> list[tuple[Var, Expr]]:
    x = value.args[0]
    is_nan = new_var(module, var, f"{var.name}_nan", x.ty.shape, "bool")
    clipped = new_var(module, var, f"{var.name}_clipped", x.ty.shape, str(x.ty.dtype))
    return [(is_nan, relax.op.isnan(x)), (clipped, value), (var, relax.op.where(is_nan, x, clipped))]
