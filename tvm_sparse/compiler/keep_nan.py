"""Make the ReLUs that no convolution took in keep NaN, as those that one did."""

import tvm
from tvm import relax
from tvm.ir import Expr, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild


def keep_nan(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with each ``relu(x)`` as ``where(x < 0, 0, x)``; TVM's own gives 0 for NaN. Run it last."""
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        if is_call(value, "relax.nn.relu"):
            x = value.args[0]
            zero = relax.const(0, str(x.ty.dtype))
            below = relax.op.less(x, zero)
            is_below = new_var(module, var, f"{var.name}_below", x.ty.shape, "bool")
            edits[var] = [(is_below, below), (var, relax.op.where(is_below, zero, x))]
    return rebuild(module, edits)
