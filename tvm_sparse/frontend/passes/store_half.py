"""Store the tensors of a float32 model in half precision, and compute as before.

Every tensor that one operator of the model hands to the next is rounded to the storage type and widened again as it is
read. TVM fuses both with the operator; a kernel of ours reads and writes the storage type itself. What is within an
operator, such as sums, means and exponentials, stays float32, and so does what the next computes from it element by
element in the same kernel, and what the model has in float32. Weights and biases of layers in half precision are
rounded once.
"""

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT32
from tvm_sparse.conv.storage import STORAGE, is_half, rounded
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.passes.find_convolutions import find_groups
from tvm_sparse.frontend.passes.relax_graph import ELEMENTWISE, Graph, is_call, is_float32, rebuild
from tvm_sparse.frontend.precision import Precision
from tvm_sparse.frontend.steps import STEPS

# Operators that only move or choose numbers: on half-precision tensors they give what they would on float32 ones.
_MOVING = ("reshape", "permute_dims", "squeeze", "expand_dims", "concat", "split", "nn.max_pool2d")
_LAYERS = ("relax.nn.conv2d", "relax.matmul")
# What TVM computes together, element by element; of what is cast or rounded, a rounding before may change all.
_TOGETHER = (ELEMENTWISE | {"relax.broadcast_to", "relax.power"}) - {"relax.astype", "relax.round"}


def store_half(module: tvm.IRModule, precision: Precision) -> tvm.IRModule:
    """`module`, prepared in float32, with tensors, inputs and outputs of the types of `precision`, a half one.

    ModelError where a weight or bias of a layer is too large for the storage type.
    """
    module = relax.transform.ToNonDataflow()(_with_rounded_layers(module, precision.dtype))
    found = _Storing(module, precision).run()
    passes = [relax.transform.ConvertToDataflow(), relax.transform.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(passes)(found)


def _with_rounded_layers(module: tvm.IRModule, dtype: str) -> tvm.IRModule:
    """`module` whose layers have weights, and ours biases, of `dtype`'s numbers, still in float32."""
    graph = Graph.of(module)
    groups = find_groups(graph)
    names = {var: group.layer.name for group in groups for var in (*group.absorbed, group.result)}
    results = {var: group.result for group in groups for var in group.absorbed}
    edits = {}
    for var, value in graph.definitions.items():
        if _is_wide_layer(graph, results.get(var, var)):
            continue
        if _is_layer(value) or (var in names and is_call(value, "relax.add")):
            where = f"layer {names.get(var, var.name)}"
            arguments = [_rounded(where, argument, dtype) for argument in value.args]
            edits[var] = [(var, relax.Call(value.op, arguments, value.attrs, value.ty_args, value.span))]
        elif is_call(value, "relax.where"):
            edits[var] = [(var, relax.op.where(*(_finite(argument, dtype) for argument in value.args)))]
    return rebuild(module, edits)


def _is_layer(value: Expr) -> bool:
    return any(is_call(value, name) for name in _LAYERS)


def _is_wide_layer(graph: Graph, result: Var) -> bool:
    """Whether that is in float32 in the model, and not rounded before anything reads it."""
    user = graph.only_user(result)
    return result in graph.wide and (user is None or not is_call(user[1], "relax.astype"))


def _rounded(where: str, argument: Expr, dtype: str) -> Expr:
    if not isinstance(argument, GenericConst) or not is_float32(argument):
        return argument
    array = argument.value.numpy()
    found = rounded(array, dtype)
    overflows = np.isinf(found) & np.isfinite(array)
    if overflows.any():
        largest = f"{np.abs(array[overflows]).max():.4g}"
        allowed, hint = f"up to {STORAGE[dtype].largest:.5g}", f"cast it to {BFLOAT16}"
        raise ModelError(where, f"its weight or bias is too large for {dtype}", largest, allowed, hint)
    return relax.const(found)


def _finite(argument: Expr, dtype: str) -> Expr:
    """A constant's finite numbers as such ones of `dtype`: where a mask is infinite throughout, a softmax is NaN."""
    if not isinstance(argument, GenericConst) or not is_float32(argument):
        return argument
    array, largest = argument.value.numpy(), STORAGE[dtype].largest
    return relax.const(np.where(np.isfinite(array), array.clip(-largest, largest), array).astype(np.float32))


class _Storing:
    """Rewrites ``main``, a function without dataflow blocks."""

    def __init__(self, module: tvm.IRModule, precision: Precision):
        self.module, self.dtype, self.precision = module, precision.dtype, precision
        self.graph, self.builder = Graph.of(module), relax.BlockBuilder(module)
        self.bindings: list[relax.VarBinding] = []
        # Variable -> the same tensor as it is stored.
        self.stored: dict[Var, Var] = {}

    def run(self) -> tvm.IRModule:
        """The module with another ``main``."""
        main = self.module["main"]
        groups = find_groups(self.graph)
        absorbed = {var for group in groups for var in group.absorbed}
        self.results = {group.result for group in groups}
        self.of_layers = absorbed | self.results
        parameters = [self._parameter(*each) for each in zip(main.params, self.precision.inputs, strict=True)]
        for block in main.body.blocks:
            for binding in block.bindings:
                self._store(binding.var, binding.value, binding.var in absorbed)
        returned = self._returned(main.body.body)
        body = relax.SeqExpr([relax.BindingBlock(self.bindings)], returned)
        module = self.module.clone()
        made = relax.Function(parameters, body, returned.ty, main.is_pure, main.attrs)
        module["main"] = made.without_attr(STEPS) if STEPS in (main.attrs or {}) else made
        return module

    def _bind(self, name: str, value: Expr) -> Var:
        value = self.builder.normalize(value)
        var = relax.Var(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _keep(self, var: Var, value: Expr) -> None:
        self.bindings.append(relax.VarBinding(var, self.builder.normalize(value)))

    def _parameter(self, parameter: Var, dtype: str) -> Var:
        """The parameter in its own type; those behind it read it in float32."""
        if not is_float32(parameter) or not is_half(dtype):
            return parameter
        half = relax.Var(parameter.name, relax.TensorType(parameter.ty.shape, dtype))
        if dtype == self.dtype:
            self.stored[parameter] = half
        self._keep(parameter, relax.op.astype(half, FLOAT32))
        return half

    def _store(self, var: Var, value: Expr, is_inner: bool) -> None:
        moved = None if is_inner or not _is_moving(value) else self._moved(value)
        if moved is not None:
            half = self._bind(f"{var.name}_stored", moved)
        elif is_inner or not is_float32(var) or self._is_step(var):
            self._keep(var, value)
            return
        elif is_call(value, "relax.astype") and str(value.args[0].ty.dtype) == self.dtype:
            # The model rounds it itself.
            half = value.args[0]
            self.stored[var] = half
            self._keep(var, value)
            return
        else:
            half = self._bind(f"{var.name}_stored", relax.op.astype(self._bind(f"{var.name}_wide", value), self.dtype))
        self.stored[var] = half
        self._keep(var, relax.op.astype(half, FLOAT32))

    def _is_step(self, var: Var) -> bool:
        """Whether it is not stored: a layer that is none of float32 reads and writes what is."""
        if var in self.graph.wide or self._is_within(var):
            return True
        readers = [user for user in self.graph.users[var] if _is_layer(self.graph.definitions[user])]
        return var in self.graph.inner and var not in self.results and all(user in self.graph.wide for user in readers)

    def _is_within(self, var: Var) -> bool:
        """Whether it is never written, as TVM computes it together with the one operator that reads it."""
        user = self.graph.only_user(var)
        if user is None or not self.of_layers.isdisjoint((var, user[0])):
            return False
        if any(self._is_product(each) for each in user[1].args if not each.same_as(var)):
            return False
        return all(any(is_call(each, name) for name in _TOGETHER) for each in (self.graph.definitions[var], user[1]))

    def _is_product(self, value: Expr) -> bool:
        """Whether a linear layer gives `value`, which may be a dense one; what is added to that it reads as stored."""
        call = self.graph.definitions.get(value)
        if isinstance(call, Call) and is_call(call, "relax.add"):
            return any(isinstance(each, GenericConst) for each in call.args) and any(map(self._is_product, call.args))
        return isinstance(call, Call) and is_call(call, "relax.matmul")

    def _moved(self, call: Call) -> Expr | None:
        """`call` on stored tensors; None where one is not stored, or the result is no tensor."""
        arguments = [self._as_stored(argument) for argument in call.args]
        if any(argument is None for argument in arguments) or not isinstance(call.ty, relax.TensorType):
            return None
        return relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span)

    def _as_stored(self, argument: Expr) -> Expr | None:
        if isinstance(argument, relax.Tuple):
            fields = [self._as_stored(each) for each in argument.fields]
            return None if any(each is None for each in fields) else relax.Tuple(fields)
        return self.stored.get(argument) if isinstance(argument.ty, relax.TensorType) else argument

    def _returned(self, value: Expr) -> Expr:
        """What ``main`` returns, each output in its own type."""
        if isinstance(value.ty, relax.TensorType):
            return self._output(value, self.precision.outputs[0])
        outputs = (
            value.fields
            if isinstance(value, relax.Tuple)
            else [
                self._bind(f"output{index}", relax.TupleGetItem(value, index)) for index in range(len(value.ty.fields))
            ]
        )
        pairs = zip(outputs, self.precision.outputs, strict=True)
        return self._bind("outputs", relax.Tuple([self._output(*each) for each in pairs]))

    def _output(self, value: Expr, dtype: str) -> Expr:
        if not is_float32(value) or not is_half(dtype):
            return value
        if dtype == self.dtype and value in self.stored:
            return self.stored[value]
        return self._bind("output", relax.op.astype(value, dtype))


def _is_moving(value: Expr) -> bool:
    return any(is_call(value, f"relax.{name}") for name in _MOVING)
