"""Fold a number that multiplies the whole input of a linear layer into its weight: such is alpha of ONNX's Gemm."""

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Expr, GenericConst, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, is_float32, linear_weight, rebuild, with_weight


def fold_scaling(module: tvm.IRModule) -> tvm.IRModule:
    """`module` where no linear layer reads ``multiply(x, number)``, unless its weight would overflow float32."""
    graph = Graph.of(module)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in graph.definitions.items():
        weight = linear_weight(value)
        scaled = _scaled(graph.definitions.get(value.args[0])) if weight is not None else None
        if weight is None or scaled is None:
            continue
        x, factor = scaled
        with np.errstate(over="ignore"):
            folded = (weight * factor).astype(np.float32)
        if np.isfinite(folded).all():
            call = with_weight(value, folded)
            edits[var] = [(var, relax.Call(call.op, [x, call.args[1]], call.attrs, call.ty_args, call.span))]
    return relax.transform.DeadCodeElimination(["main"])(rebuild(module, edits)) if edits else module


def _scaled(value: Expr | None) -> tuple[Expr, float] | None:
    """``(x, factor)`` where `value` is ``multiply(x, factor)`` and has the shape of ``x``, else None."""
    if value is None or not is_call(value, "relax.multiply"):
        return None
    x, factor = reversed(value.args) if isinstance(value.args[0], GenericConst) else value.args
    if not isinstance(factor, GenericConst) or isinstance(x, GenericConst) or not is_float32(value):
        return None
    array = factor.value.numpy()
    return (x, float(array.item())) if array.size == 1 and array.ndim <= len(x.ty.shape) else None
