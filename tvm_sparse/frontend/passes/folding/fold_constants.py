"""Compute what depends on parameters only: masks times weights, statistics of batch norms, reshaped biases."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_float32, rebuild, static_shape

_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.sqrt": np.sqrt,
    # Of bounds of clips, of which a quantised network has several a layer.
    "relax.isnan": np.isnan,
    "relax.where": np.where,
}
_DTYPES = ("float32", "bool")
_RESHAPING = ("relax.reshape", "relax.expand_dims")


def fold_constants(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with batch norms written as arithmetic and every constant expression replaced by its value.

    A batch norm becomes ``(x - mean) / deviation * scale + shift``, each constant (1, K, 1, 1); a bias becomes an
    addition of a constant (1, K, 1, 1); ``weight_orig * weight_mask`` becomes one constant.
    """
    passes = [
        relax.transform.DecomposeOpsForInference(),
        _fold_with_numpy,
        relax.transform.CanonicalizeBindings(),
        relax.transform.FoldConstant(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    return tvm.transform.Sequential(passes)(module)


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.fold_with_numpy")
def _fold_with_numpy(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Fold the commonest operators of float32; `FoldConstant` compiles each one, which costs seconds for ResNet-50."""
    known: dict[Var, np.ndarray] = {}
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        result = _value(value, known)
        if result is not None:
            known[var] = result
            edits[var] = [(var, relax.const(result))]
    return rebuild(module, edits)


def _value(value: Expr, known: dict[Var, np.ndarray]) -> np.ndarray | None:
    """What a call of a known operator on known values gives, else None."""
    if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    if not is_float32(value) and value.op.name != "relax.isnan":
        return None
    if value.op.name in _RESHAPING:
        array, shape = _operand(value.args[0], known), static_shape(value)
        return array.reshape(shape) if array is not None and shape is not None else None
    if value.op.name == "relax.permute_dims":
        array = _operand(value.args[0], known)
        axes = value.attrs.axes
        return np.ascontiguousarray(array.transpose(axes and [int(a) for a in axes])) if array is not None else None
    if value.op.name not in _ELEMENTWISE:
        return None
    operands = [_operand(argument, known) for argument in value.args]
    if any(operand is None for operand in operands):
        return None
    # What a strange model divides by zero here, it divides by zero anyway.
    with np.errstate(all="ignore"):
        return np.asarray(_ELEMENTWISE[value.op.name](*operands))


def _operand(argument: Expr, known: dict[Var, np.ndarray]) -> np.ndarray | None:
    if isinstance(argument, GenericConst):
        return argument.value.numpy() if str(getattr(argument.ty, "dtype", "")) in _DTYPES else None
    return known.get(argument) if isinstance(argument, Var) else None
