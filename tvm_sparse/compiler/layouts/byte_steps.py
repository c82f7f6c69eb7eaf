"""What lies between kernels of eight-bit integers and can be done on bytes: max pools, and functions of a code.

Such as SiLU: codes are scaled, multiplied by their rounded sigmoid, scaled and rounded again. Of 256 codes that is a
table, whatever the operators are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.ir import Call, Expr, GenericConst, Var
from tvm.target import Target

from tvm_sparse.conv.codes import CODES
from tvm_sparse.frontend.passes.folding.fold_rounding import is_whole_pool
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, static_shape
from tvm_sparse.scheduling.cpu.byte_pool import max_pool
from tvm_sparse.scheduling.cpu.byte_table import by_table

# Operators that a table may be of, on float32.
_POINTWISE: Mapping[str, Callable[..., np.ndarray]] = {
    "relax.add": np.add,
    "relax.clip": np.clip,
    "relax.divide": np.divide,
    "relax.exp": np.exp,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.multiply": np.multiply,
    "relax.nn.leakyrelu": lambda x, alpha: np.where(x < 0, x * alpha, x),
    "relax.nn.relu": lambda x: np.maximum(x, 0),
    "relax.round": np.rint,
    "relax.sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relax.subtract": np.subtract,
    "relax.tanh": np.tanh,
}


@dataclass(frozen=True)
class ByteStep:
    """How a tensor of bytes, less `least`, is computed of another: `source` and `constants` are `func`'s arguments.

    `absorbed` are the variables in between, which nothing else reads.
    """

    func: tirx.PrimFunc
    source: Var
    least: int
    constants: tuple[np.ndarray, ...] = ()
    absorbed: tuple[Var, ...] = ()


def byte_steps(graph: Graph, written: Mapping[Var, int], target: Target) -> dict[Var, ByteStep]:
    """The steps that follow tensors of bytes which kernels have `written`, each with its least code."""
    least, found = dict(written), dict[Var, ByteStep]()
    for var, value in graph.definitions.items():
        if var in least or not isinstance(value, Call):
            continue
        step = _pool(value, least) or _table(graph, var, least, target)
        if step is not None:
            found[var], least[var] = step, step.least
    return found


def _pool(value: Call, least: Mapping[Var, int]) -> ByteStep | None:
    if not is_whole_pool(value) or value.args[0] not in least:
        return None
    attrs, source = value.attrs, value.args[0]
    pairs = ((int(each[0]), int(each[1])) for each in (attrs.pool_size, attrs.strides, attrs.padding))
    return ByteStep(max_pool(static_shape(source) or (), static_shape(value) or (), *pairs), source, least[source])


def _table(graph: Graph, var: Var, least: Mapping[Var, int], target: Target) -> ByteStep | None:
    bounds, between = code_bounds(graph.definitions[var]), dict[Var, np.ndarray]()
    if bounds is None or not is_call(graph.definitions.get(graph.definitions[var].args[0]), "relax.round"):
        return None
    sources: list[Var] = []
    values = _values(graph, var, least, between, sources)
    source = sources[0] if sources else None
    absorbed = tuple(each for each in between if not each.same_as(var))
    is_closed = all(user in between for each in absorbed for user in graph.users[each])
    if values is None or source is None or not is_closed or not graph.returned.isdisjoint(absorbed):
        return None
    if static_shape(source) != static_shape(var) or not np.isfinite(values).all():
        return None
    table = (values - bounds[0]).astype(np.uint8).view(np.int8)
    return ByteStep(by_table(static_shape(source) or (), target), source, bounds[0], (table,), absorbed)


def _values(
    graph: Graph, value: Expr, least: Mapping[Var, int], between: dict[Var, np.ndarray], sources: list[Var]
) -> np.ndarray | None:
    """What `value` is for each of the codes of the one source, which is noted; None where it depends on more."""
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        return array.reshape(()) if array.size == 1 and array.dtype == np.float32 else None
    if not isinstance(value, Var):
        # A bound of a clip.
        return np.float32(value.value)
    if value in least:
        sources[:] = sources or [value]
        codes = np.arange(CODES, dtype=np.float32) + np.float32(least[value])
        return codes if sources[0].same_as(value) else None
    if value not in between:
        call = graph.definitions.get(value)
        function = _POINTWISE.get(getattr(call.op, "name", "")) if isinstance(call, Call) else None
        if call is None or function is None:
            return None
        parts = [_values(graph, each, least, between, sources) for each in call.args]
        if any(each is None for each in parts):
            return None
        parts += [np.float32(call.attrs.alpha)] if is_call(call, "relax.nn.leakyrelu") else []
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            between[value] = np.asarray(function(*parts), np.float32)
    return between[value]


def code_bounds(step: Expr) -> tuple[int, int] | None:
    """The bounds of a clip to codes."""
    if not is_call(step, "relax.clip"):
        return None
    least, greatest = (float(each.value) for each in step.args[1:])
    is_whole = least.is_integer() and greatest.is_integer()
    return (int(least), int(greatest)) if is_whole and least <= greatest < least + CODES else None
