"""The same network for fewer samples, which run in turns.

It may be cut so where each operator computes every sample of its result from that sample alone. Those that are known to
do so are listed here, with what must hold of their attributes.
"""

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir import Call, Expr, Var

from tvm_sparse.frontend.passes.relax_graph import ELEMENTWISE, Graph, fixed_shape, static_shape

# Attributes that name axes of the first argument, of which none may be that of the samples.
_AXES = {
    "relax.concat": "axis",
    "relax.expand_dims": "axis",
    "relax.max": "axis",
    "relax.mean": "axis",
    "relax.min": "axis",
    "relax.nn.layer_norm": "axes",
    "relax.nn.log_softmax": "axis",
    "relax.nn.softmax": "axis",
    "relax.split": "axis",
    "relax.squeeze": "axis",
    "relax.sum": "axis",
}
# Operators on maps, whose layouts begin with the samples.
_MAPS = ("adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "conv2d", "max_pool2d", "pixel_shuffle")
_SHAPED = ("relax.broadcast_to", "relax.memory.view", "relax.reshape")


def rebatched(module: tvm.IRModule, batch: int) -> tvm.IRModule | None:
    """`module` for inputs of `batch` samples; None where samples are not known to be computed each from itself alone.

    All inputs and outputs have the samples as their first dimension.
    """
    main = module["main"]
    shapes = [static_shape(each) or () for each in main.params]
    samples = {shape[:1] for shape in shapes}
    is_plain = all(isinstance(block, relax.DataflowBlock) for block in main.body.blocks)
    if len(samples) != 1 or samples == {()} or not is_plain:
        return None
    (count,), builder = samples.pop(), relax.BlockBuilder()
    pairs = zip(main.params, shapes, strict=True)
    params = [relax.Var(old.name, relax.TensorType((batch, *shape[1:]), str(old.ty.dtype))) for old, shape in pairs]
    cut, bindings = _Cut(dict(zip(main.params, params, strict=True)), count, batch), []
    for var, value in Graph.of(module).definitions.items():
        found = cut.of(value)
        if found is None:
            return None
        found = builder.normalize(found)
        cut.new[var] = type(var)(var.name, found.ty)
        bindings.append(relax.VarBinding(cut.new[var], found))
    results = [main.body.body] if isinstance(main.body.body, Var) else list(getattr(main.body.body, "fields", []))
    if not results or not all(each in cut.new and cut.is_batched(each) for each in results):
        return None
    body = cut.new[results[0]] if isinstance(main.body.body, Var) else relax.Tuple([cut.new[each] for each in results])
    sequence = builder.normalize(relax.SeqExpr([relax.DataflowBlock(bindings)], body))
    found = module.clone()
    found["main"] = relax.Function(params, sequence, None, main.is_pure, main.attrs)
    return found


class _Cut:
    """Values of a network of `batch` samples, from those of one of `count`; `new` has the variables that are known."""

    def __init__(self, new: dict[Var, Var], count: int, batch: int):
        self.new, self._count, self._batch = new, count, batch

    def is_batched(self, value: Expr) -> bool:
        """Whether it is a tensor with samples, or such tensors together."""
        kinds = value.ty.fields if isinstance(value.ty, relax.TupleType) else [value.ty]
        return all((fixed_shape(kind) or ())[:1] == (self._count,) for kind in kinds) and value in self.new

    def of(self, value: Expr) -> Expr | None:
        """What a variable is bound to in the new network; None where samples may meet."""
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self.new[value.tuple_value], value.index) if self._holds(value) else None
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.new[each] for each in value.fields]) if self._holds(value) else None
        if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.Op) or not self._keeps_apart(value):
            return None
        arguments = [self._argument(value, each) for each in value.args]
        return relax.Call(value.op, arguments, value.attrs, value.ty_args, value.span)

    def _holds(self, value: Expr) -> bool:
        fields = [value.tuple_value] if isinstance(value, relax.TupleGetItem) else list(value.fields)
        return all(isinstance(each, Var) and self.is_batched(each) for each in fields)

    def _argument(self, call: Call, value: Expr) -> Expr:
        if isinstance(value, Var):
            return self.new[value]
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.new[each] for each in value.fields])
        if isinstance(value, relax.ShapeExpr) and call.op.name in _SHAPED:
            return relax.ShapeExpr([self._batch, *value.values[1:]])
        return value

    def _keeps_apart(self, call: Call) -> bool:
        """Whether a call is known to compute a sample of its result from the same one of its arguments."""
        name, first, rest = call.op.name, call.args[0], call.args[1:]
        if not all(self._holds(each) if isinstance(each, relax.Tuple) else self._fits(each) for each in call.args):
            return False
        if name in ELEMENTWISE:
            return self._aligned(call)
        is_first = self._holds(first) if isinstance(first, relax.Tuple) else self.is_batched(first)
        if not is_first:
            return False
        constant = not any(isinstance(each, Var) for each in rest)
        if name in _AXES:
            return constant and self._spares_samples(call, _AXES[name])
        if name in _SHAPED:
            return self._keeps_first(call)
        if name.removeprefix("relax.nn.") in _MAPS:
            return constant
        return name in _OTHERS and _OTHERS[name](self, call)

    def _fits(self, value: Expr) -> bool:
        """A tensor with samples, or no variable at all."""
        return self.is_batched(value) if isinstance(value, Var) else True

    def _aligned(self, call: Call) -> bool:
        """Whether each argument has the samples where the result has them, or is the same for all."""
        rank, shapes = len(fixed_shape(call.ty) or ()), [static_shape(each) for each in call.args]
        fits = [
            shape is None or (len(shape) == rank if isinstance(each, Var) else len(shape) < rank or shape[0] == 1)
            for each, shape in zip(call.args, shapes, strict=True)
        ]
        return all(fits) and any(isinstance(each, Var) for each in call.args)

    def _spares_samples(self, call: Call, attribute: str) -> bool:
        axes = getattr(call.attrs, attribute)
        if axes is None:
            return False
        values = [int(each) for each in axes] if hasattr(axes, "__len__") else [int(axes)]
        tensor = call.args[0].fields[0] if isinstance(call.args[0], relax.Tuple) else call.args[0]
        rank = len(static_shape(tensor) or ()) + (len(values) if call.op.name == "relax.expand_dims" else 0)
        return 0 not in [value % rank for value in values]

    def _keeps_first(self, call: Call) -> bool:
        """Another shape that begins with the samples; shapes that are broadcast are aligned at their ends."""
        shape = call.args[1]
        if not isinstance(shape, relax.ShapeExpr) or int(shape.values[0]) != self._count:
            return False
        return call.op.name != "relax.broadcast_to" or len(shape.values) == len(static_shape(call.args[0]) or ())

    def _multiplies(self, call: Call) -> bool:
        """A product with a constant matrix; of a number for each sample it is a sum of these."""
        ranks = [len(static_shape(each) or ()) for each in call.args]
        return not isinstance(call.args[1], Var) and ranks[0] > 1 and ranks[1] == 2

    def _pads_maps(self, call: Call) -> bool:
        return not any(int(each) for each in call.attrs.pad_width[:2])

    def _stays_first(self, call: Call) -> bool:
        return call.attrs.axes is not None and int(call.attrs.axes[0]) == 0


_OTHERS: dict[str, Callable[[_Cut, Call], bool]] = {
    "relax.image.resize2d": lambda _cut, call: str(call.attrs.layout).startswith("N"),
    "relax.matmul": _Cut._multiplies,
    "relax.nn.pad": _Cut._pads_maps,
    "relax.permute_dims": _Cut._stays_first,
}
