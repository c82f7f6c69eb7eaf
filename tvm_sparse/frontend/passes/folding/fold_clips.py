"""Write ONNX's Clip as Relax's clip, or as its ReLU where it only cuts off what is below zero.

TVM's importer makes it functions of loops, a maximum and a minimum, which no layer could take in.
"""

import math
from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Expr, GenericConst, GlobalVar, TensorLoad, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, rebuild, static_shape

_Bound = type[tirx.Max] | type[tirx.Min]


def fold_clips(module: tvm.IRModule) -> tvm.IRModule:
    """`module` where a bound from above and below is one clip, and one at zero from below alone a ReLU.

    Both keep NaN, as ONNX asks.
    """
    graph = Graph.of(module)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in graph.definitions.items():
        x, most = _bounded(module, value, tirx.Min) or (None, math.inf)
        x, least = _bounded(module, value if x is None else graph.definitions.get(x), tirx.Max) or (None, -math.inf)
        if x is not None and -math.inf < least <= most < math.inf:
            edits[var] = [(var, relax.op.clip(x, least, most))]
        elif x is not None and least == 0 and most == math.inf:
            edits[var] = [(var, relax.op.nn.relu(x))]
    return relax.transform.DeadCodeElimination(["main"])(rebuild(module, edits)) if edits else module


def _bounded(module: tvm.IRModule, value: Expr | None, operator: _Bound) -> tuple[Expr, float] | None:
    """``(x, number)`` where `value` calls a function that is `operator` of each element of ``x`` and a number."""
    if value is None or not is_call(value, "relax.call_tir") or not isinstance(value.args[0], GlobalVar):
        return None
    func, (x, *bounds) = module[value.args[0]], value.args[1]
    if static_shape(x) is None or static_shape(x) != static_shape(value) or len(func.params) != len(bounds) + 2:
        return None
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    stored = stores[0].value if len(stores) == 1 else None
    if not isinstance(stored, operator) or not _is_element(stored.a, func.params[0], stores[0]):
        return None
    numbers = [*_numbers(stored.b, func.params[1:-1], bounds)]
    return (x, numbers[0]) if numbers else None


def _is_element(value: Expr, parameter: Var, store: tirx.BufferStore) -> bool:
    """Whether `value` is that element of `parameter` which is stored."""
    is_load = isinstance(value, TensorLoad) and value.source.same_as(parameter)
    return is_load and tvm_ffi.structural_equal(list(value.indices), list(store.indices))


def _numbers(bound: Expr, parameters: list[Var], arguments: list[Expr]) -> Iterator[float]:
    """What `bound` is, a number in the function or a constant that it is called with."""
    if isinstance(bound, tirx.FloatImm):
        yield float(bound.value)
    for parameter, argument in zip(parameters, arguments, strict=True):
        is_loaded = isinstance(bound, TensorLoad) and bound.source.same_as(parameter)
        if is_loaded and isinstance(argument, GenericConst) and argument.value.numpy().size == 1:
            yield float(argument.value.numpy().item())
