"""Where the operators of Relax that read or write at places given by data have these, and how far they may go."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import relax
from tvm.ir import Call, Expr, Var

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.origins import origin_of
from tvm_sparse.frontend.passes.relax_graph import static_shape

# What `take` does itself with indices out of range.
_SAFE_MODES = ("clip", "wrap")


@dataclass(frozen=True)
class IndexOperand:
    """A tensor of indices that are at least 0 and below `sizes`.

    With `has_coordinates` its last axis holds the coordinates of an index, one for each of `sizes`; else there is one
    size. With `is_float` it is the first column of `index` that holds them, as floating-point numbers.
    """

    index: Expr
    sizes: tuple[int, ...]
    has_coordinates: bool = False
    is_float: bool = False


def operands_of(call: Call, definitions: Mapping[Var, Expr]) -> list[IndexOperand]:
    """The indices of `call`, an operator in `INDEXED` of the function that `definitions` are of.

    ModelError where the shape of its indices is not one that TVM's code for it reads within.
    """
    data, index = call.args[0], call.args[1]
    shape, name = static_shape(data) or (), call.op.name.removeprefix("relax.")
    if name == "take":
        if str(call.attrs.mode) in _SAFE_MODES or not isinstance(index.ty, relax.TensorType):
            return []
        size = math.prod(shape) if call.attrs.axis is None else _size_along(call, shape, call.attrs.axis)
        return [IndexOperand(index, (size,))]
    if name in ("gather_elements", "scatter_elements"):
        size = _size_along(call, shape, call.attrs.axis)
        _require_fitting(call, shape, static_shape(index) or (), call.attrs.axis % len(shape))
        return [IndexOperand(index, (size,))]
    if name in ("gather_nd", "scatter_nd"):
        first = int(call.attrs.batch_dims) if name == "gather_nd" else 0
        count = (static_shape(index) or (0,))[-1]
        return [IndexOperand(index, shape[first : first + count], has_coordinates=True)]
    if name in ("index_tensor", "index_put"):
        fields = (definitions.get(index, index) if isinstance(index, Var) else index).fields
        return [IndexOperand(each, (size,)) for each, size in zip(fields, shape, strict=False)]
    return [IndexOperand(index, shape[:1], is_float=True)]


def _size_along(call: Call, shape: tuple[int, ...], axis: int) -> int:
    """The size of an axis of the tensor that `call` takes elements of; ModelError where it has no such axis."""
    rank = len(shape)
    if not -rank <= axis < rank:
        problem = "it takes elements along an axis that its tensor does not have"
        allowed = f"{-rank} to {rank - 1}" if rank else "none: it is a number"
        raise ModelError(origin_of(call).name, problem, axis, allowed, "repair the model")
    return shape[axis]


def with_operands(call: Call, safe: Sequence[Expr]) -> Call:
    """`call` with the indices `safe`, one for each of `operands_of`, in the place of its own."""
    arguments = list(call.args)
    if isinstance(call.args[1].ty, relax.TupleType):
        arguments[1] = relax.Tuple(list(safe))
    elif safe:
        arguments[1] = safe[0]
    attrs = call.attrs
    if call.op.name == "relax.take" and str(attrs.mode) not in _SAFE_MODES:
        # TVM warns of its other modes on standard error, each time.
        attrs = relax.op.take(*arguments, attrs.axis, "clip").attrs
    return relax.Call(call.op, arguments, attrs, call.ty_args, call.span)


def first_column(operand: IndexOperand, bind: Callable[[Expr], Var]) -> tuple[IndexOperand, Expr]:
    """An operand of a float column as one of that column alone, and the other columns."""
    _, columns = static_shape(operand.index) or (0, 0)

    def part(begin: int, end: int) -> Var:
        return bind(relax.op.strided_slice(operand.index, [1], [begin], [end]))

    return replace(operand, index=part(0, 1)), part(1, columns)


def _require_fitting(call: Call, data: tuple[int, ...], index: tuple[int, ...], axis: int) -> None:
    """Raise ModelError where indices lie beside `data`: TVM reads at the place of each index in its own tensor."""
    is_scatter = call.op.name == "relax.scatter_elements"
    pairs = [pair for i, pair in enumerate(zip(index, data, strict=False)) if i != axis]
    fits = len(index) == len(data) and all(own == size if is_scatter else own <= size for own, size in pairs)
    if not fits:
        problem, found = "its indices have another shape than its data", f"{index} for {data}"
        allowed = f"the same sizes, but for axis {axis}"
        raise ModelError(origin_of(call).name, problem, found, allowed, "use GatherND or ScatterND")
