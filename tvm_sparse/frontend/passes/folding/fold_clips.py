"""Write ONNX's Clip as Relax's clip, or as its ReLU where it only cuts off what is below zero.

TVM's importer makes it functions of loops, a maximum and a minimum, which no layer could take in.
"""

import math
from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Expr, GenericConst, GlobalVar, TensorLoad, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild, static_shape

_Bound = type[tirx.Max] | type[tirx.Min]
_FLOATS = ("float16", "float32", "float64")


def fold_clips(module: tvm.IRModule) -> tvm.IRModule:
    """`module` where a bound from above and below is one clip, and one at zero from below alone a ReLU.

    Both keep NaN, as ONNX asks. TVM's maximum and minimum do not: any other bound of floats is a choice, which does.
    """
    graph = Graph.of(module)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in graph.definitions.items():
        upper = _bounded(module, value, tirx.Min)
        lower = _bounded(module, graph.definitions.get(upper[0]) if upper else value, tirx.Max)
        least, most = _number(lower, -math.inf), _number(upper, math.inf)
        if lower and -math.inf < least <= most < math.inf:
            edits[var] = [(var, relax.op.clip(lower[0], least, most))]
        elif lower and least == 0 and most == math.inf:
            edits[var] = [(var, relax.op.nn.relu(lower[0]))]
        elif step := upper or lower:
            is_beyond = new_var(module, var, "is_beyond", static_shape(var) or (), "bool")
            beyond = (relax.op.greater if upper else relax.op.less)(*step)
            edits[var] = [(is_beyond, beyond), (var, relax.op.where(is_beyond, step[1], step[0]))]
    return relax.transform.DeadCodeElimination(["main"])(rebuild(module, edits)) if edits else module


def _bounded(module: tvm.IRModule, value: Expr | None, operator: _Bound) -> tuple[Expr, Expr] | None:
    """``(x, bound)`` where `value` calls a function that is `operator` of each element of floats ``x`` and a number."""
    if value is None or not is_call(value, "relax.call_tir") or not isinstance(value.args[0], GlobalVar):
        return None
    func, (x, *bounds) = module[value.args[0]], value.args[1]
    if static_shape(x) is None or static_shape(x) != static_shape(value) or len(func.params) != len(bounds) + 2:
        return None
    if str(x.ty.dtype) not in _FLOATS:
        return None
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    stored = stores[0].value if len(stores) == 1 else None
    if not isinstance(stored, operator) or not _is_element(stored.a, func.params[0], stores[0]):
        return None
    found = [*_numbers(stored.b, func.params[1:-1], bounds, str(x.ty.dtype))]
    return (x, found[0]) if found else None


def _number(bounded: tuple[Expr, Expr] | None, otherwise: float) -> float:
    """The bound; `otherwise` where there is none, NaN where it is not known."""
    if bounded is None:
        return otherwise
    bound = bounded[1]
    return float(bound.value.numpy().item()) if isinstance(bound, GenericConst) else math.nan


def _is_element(value: Expr, parameter: Var, store: tirx.BufferStore) -> bool:
    """Whether `value` is that element of `parameter` which is stored."""
    is_load = isinstance(value, TensorLoad) and value.source.same_as(parameter)
    return is_load and tvm_ffi.structural_equal(list(value.indices), list(store.indices))


def _numbers(bound: Expr, parameters: list[Var], arguments: list[Expr], dtype: str) -> Iterator[Expr]:
    """What `bound` is, a number in the function or one that it is called with."""
    if isinstance(bound, tirx.FloatImm):
        yield relax.const(float(bound.value), dtype)
    for parameter, argument in zip(parameters, arguments, strict=True):
        is_loaded = isinstance(bound, TensorLoad) and bound.source.same_as(parameter)
        if is_loaded and isinstance(argument, GenericConst) and argument.value.numpy().size == 1:
            yield relax.const(float(argument.value.numpy().item()), dtype)
        elif is_loaded and static_shape(argument) == ():
            yield argument
