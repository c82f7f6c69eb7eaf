"""The function ``main`` as definitions and uses, which is all that the passes need to see and to edit."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.frontend.passes.model_form import ModelForm
from tvm_sparse.frontend.steps import INNER, STEPS, WIDE

_UNARY = ["abs", "astype", "clip", "erf", "exp", "log", "negative", "round", "rsqrt", "sigmoid", "sqrt", "tanh"]
_ACTIVATIONS = ["gelu", "gelu_tanh", "leakyrelu", "relu", "silu", "softplus"]
_BINARY = ["add", "divide", "maximum", "minimum", "multiply", "subtract"]
# Operators that compute each element of their result from those at its place.
ELEMENTWISE = frozenset(
    [f"relax.{name}" for name in (*_UNARY, *_BINARY)] + [f"relax.nn.{name}" for name in _ACTIVATIONS]
)
# Once memory is asked for: what does that, and what gives a tensor another shape in the same memory.
ALLOCATION, SAME_MEMORY = "relax.builtin.alloc_tensor", ("relax.reshape", "relax.memory.view")
# A linear layer with a larger share of non-zeros is no sparse one: beside 4 bytes for every dense weight, a non-zero
# takes 6 or 8 with its index, so that no kernel that leaves zeros out could be much faster.
MAX_LINEAR_DENSITY = 0.5
# Convolutions that `as_2d` makes 2-D ones, and layouts of their tensors and weights.
_OTHERS = (
    ("relax.nn.conv1d", "NCW", "OIW"),
    ("relax.nn.conv3d", "NCDHW", "OIDHW"),
    ("relax.nn.conv1d_transpose", "NCW", "IOW"),
    ("relax.nn.conv2d_transpose", "NCHW", "IOHW"),
    ("relax.nn.conv3d_transpose", "NCDHW", "IODHW"),
)
# Attribute of ``main``: layer -> its `ModelForm` as text, of those that are other convolutions here.
MODEL_FORMS = "tvm_sparse.model_forms"


@dataclass(frozen=True)
class Graph:
    """What each variable of ``main`` is bound to, in program order, and which bound variables use it.

    `model_forms` says of layers that `as_2d` has rewritten, by name, what they are in the model. Of one that is to be
    stored in half precision `inner` are steps within its operators, `wide` what it has in float32 (`frontend.steps`).
    """

    definitions: dict[Var, Expr]
    users: dict[Var, list[Var]]
    returned: frozenset[Var]
    model_forms: Mapping[str, ModelForm]
    inner: frozenset[Var] = frozenset()
    wide: frozenset[Var] = frozenset()

    @classmethod
    def of(cls, module: tvm.IRModule) -> "Graph":
        """The graph of ``main``; bindings inside branches and nested functions count as one use."""
        body, attributes = module["main"].body, module["main"].attrs or {}
        definitions = {binding.var: binding.value for block in body.blocks for binding in block.bindings}
        users: dict[Var, list[Var]] = {var: [] for var in definitions}
        for var, value in definitions.items():
            for used in relax.analysis.free_vars(value):
                users.setdefault(used, []).append(var)
        returned = frozenset(relax.analysis.free_vars(body.body))
        forms = {str(name): ModelForm.from_text(str(text)) for name, text in attributes.get(MODEL_FORMS, {}).items()}
        steps = _steps((*module["main"].params, *definitions), users, attributes.get(STEPS))
        return cls(definitions, users, returned, forms, *steps)

    def only_user(self, var: Var) -> tuple[Var, Call] | None:
        """The one operator call that reads `var`, with the variable it is bound to; None where there is another use.

        A call that reads `var` twice, such as ``add(y, y)``, is no only user.
        """
        users = self.users[var]
        if len(users) != 1 or var in self.returned:
            return None
        call = self.definitions[users[0]]
        if not isinstance(call, Call) or sum(argument.same_as(var) for argument in call.args) != 1:
            return None
        return users[0], call


def _steps(
    variables: Sequence[Var], users: Mapping[Var, Sequence[Var]], names: Mapping[str, str] | None
) -> tuple[frozenset[Var], frozenset[Var]]:
    """`Graph.inner` and `Graph.wide`, of which the passes have made others; `variables` in program order."""
    if not names:
        return frozenset(), frozenset()
    # A pass may give a name again.
    count = Counter(var.name for var in variables)
    kinds = {var: str(names.get(var.name, "")) for var in variables if count[var.name] == 1}
    wide, read_wide = set[Var](), set[Var]()
    for var in variables:
        if is_float32(var) and (kinds.get(var) == WIDE or var in read_wide):
            wide.add(var)
            # Torch and ONNX compute in float32 what has a term in it, but for a number in a tensor.
            if static_shape(var) != ():
                read_wide.update(users.get(var, ()))
    return frozenset(var for var, kind in kinds.items() if kind == INNER and var not in wide), frozenset(wide)


def rebuild(module: tvm.IRModule, edits: Mapping[Var, Sequence[tuple[Var, Expr]]]) -> tvm.IRModule:
    """`module` with the binding of each variable in `edits` replaced by the given bindings (none removes it)."""
    builder = relax.BlockBuilder(module)
    main = module["main"]
    blocks = []
    for block in main.body.blocks:
        bindings = []
        for binding in block.bindings:
            if binding.var in edits:
                bindings += [relax.VarBinding(var, builder.normalize(value)) for var, value in edits[binding.var]]
            else:
                bindings.append(binding)
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, main.body.body)
    result = module.clone()
    result["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return result


def cleaned(module: tvm.IRModule) -> tvm.IRModule:
    """`module` without bindings in ``main`` that nothing reads; other functions stay."""
    cleaned_module = module.clone()
    cleaned_module["main"] = relax.analysis.remove_all_unused(module["main"])
    return cleaned_module


def new_var(module: tvm.IRModule, beside: Var, name: str, shape: Sequence[int], dtype: str = "float32") -> Var:
    """A tensor variable of the kind that the block of ``main`` that binds `beside` takes."""
    blocks = [block for block in module["main"].body.blocks if isinstance(block, relax.DataflowBlock)]
    is_inner = any(binding.var.same_as(beside) for block in blocks for binding in block.bindings)
    return (relax.DataflowVar if is_inner else relax.Var)(name, relax.TensorType(shape, dtype))


def view(value: Expr, shape: Any) -> Expr:
    """`value` with another shape, in place: a reshape that Relax fuses with another, or returns, it computes."""
    return relax.op.memory.view(value, shape, str(value.ty.dtype), 0)


def has_effect(value: Expr) -> bool:
    """Whether an operator does more than to compute its result, as an assertion does."""
    return isinstance(value, Call) and isinstance(value.op, tvm.ir.Op) and not value.op.get_attr("FPurity")


def is_call(value: Expr, operator: str) -> bool:
    """Whether `value` calls the Relax operator, for example ``relax.nn.relu``."""
    return isinstance(value, Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == operator


def static_shape(value: Expr) -> tuple[int, ...] | None:
    """Shape of a tensor whose dimensions are all numbers, else None."""
    return fixed_shape(value.ty)


def fixed_shape(kind: Any) -> tuple[int, ...] | None:
    """The shape in a tensor's type; None where a dimension is no number, or for another type."""
    shape = getattr(kind, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(size, tirx.IntImm) for size in shape.values):
        return None
    return tuple(int(size) for size in shape.values)


def is_float32(value: Expr) -> bool:
    """Whether `value` is a float32 tensor."""
    return isinstance(value.ty, relax.TensorType) and str(value.ty.dtype) == "float32"


def constant_weight(value: Expr) -> np.ndarray | None:
    """The weight (K, C / groups, R, S) of a layer: of a 2-D convolution, or (K, C, 1, 1) of a sparse linear layer."""
    weight = convolution_weight(value)
    return linear_weight(value) if weight is None else weight


def convolution_weight(value: Expr) -> np.ndarray | None:
    """The weight (K, C / groups, R, S) of `value` where that is a 2-D convolution our kernels can replace.

    That is: NCHW, OIHW, float32 throughout, every size known, constant weight.
    """
    return _weight_of(value, "relax.nn.conv2d", "NCHW", "OIHW")


def other_weight(value: Expr) -> np.ndarray | None:
    """The weight of `value`, as the model has it, where that is a convolution that `as_2d` makes a 2-D one."""
    found = (_weight_of(value, *each) for each in _OTHERS)
    weight = next((each for each in found if each is not None), None)
    return None if weight is None or 0 in (static_shape(value) or ()) else weight


def _weight_of(value: Expr, operator: str, layout: str, of_weight: str) -> np.ndarray | None:
    if not is_call(value, operator):
        return None
    attrs, (data, weight) = value.attrs, value.args
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != (layout, of_weight, layout):
        return None
    if not isinstance(weight, GenericConst) or not all(map(is_float32, (data, weight, value))):
        return None
    return weight.value.numpy() if static_shape(data) and static_shape(value) else None


def linear_weight(value: Expr) -> np.ndarray | None:
    """The weight (K, C, 1, 1) of `value` where that is a linear layer whose zeros are worth a kernel of ours.

    That is: of density `MAX_LINEAR_DENSITY` or less.
    """
    weight = matrix_weight(value)
    is_sparse = weight is not None and np.count_nonzero(weight) <= MAX_LINEAR_DENSITY * weight.size
    return weight if is_sparse else None


def matrix_weight(value: Expr) -> np.ndarray | None:
    """The weight (K, C, 1, 1) of `value` where that is any linear layer.

    That is: a product of (..., C) with a constant (C, K), float32 throughout, every size known.
    """
    if not is_call(value, "relax.matmul"):
        return None
    data, weight = value.args
    if not isinstance(weight, GenericConst) or not all(map(is_float32, (data, weight, value))):
        return None
    if not all(0 not in (static_shape(each) or (0,)) for each in (data, weight, value)):
        return None
    array = weight.value.numpy()
    return array.T[:, :, None, None] if array.ndim == 2 else None


def with_weight(value: Call, weight: np.ndarray) -> Call:
    """The layer `value` with another `weight`, given and shaped as `constant_weight` gives it."""
    stored = weight[:, :, 0, 0].T if is_call(value, "relax.matmul") else weight
    constant = relax.const(np.ascontiguousarray(stored))
    return relax.Call(value.op, [value.args[0], constant], value.attrs, value.ty_args, value.span)


def with_padding(convolution: Call, data: Expr, padding: Sequence[int]) -> Call:
    """`convolution` of other `data`, with so many zeros (top, left, bottom, right) around it."""
    attrs, weight = convolution.attrs, convolution.args[1]
    of = (attrs.strides, padding, attrs.dilation, attrs.groups)
    call = relax.op.nn.conv2d(data, weight, *of, out_dtype="float32")
    return relax.Call(call.op, call.args, call.attrs, call.ty_args, convolution.span)


def one_a_channel(layer: Call, output: Expr) -> tuple[int, ...]:
    """The shape of one value for each channel of `output`, which `layer` or an operator behind it computes.

    (1, K, 1, 1) for a convolution; (1, K), (1, 1, K) and so on for a linear layer, whose channels are the last axis.
    """
    shape = static_shape(output)
    assert shape is not None, "constant_weight admits known shapes only"
    axis = len(shape) - 1 if is_call(layer, "relax.matmul") else 1
    return tuple(size if i == axis else 1 for i, size in enumerate(shape))


def channel_vector(value: Expr, shape: tuple[int, ...]) -> np.ndarray | None:
    """A constant that broadcasts along the channels only, as a float64 (channels,) array, else None.

    `shape` is that of one value for each channel, as `one_a_channel` gives it.
    """
    if not isinstance(value, GenericConst) or not is_float32(value):
        return None
    array = value.value.numpy().astype(np.float64)
    if array.size == 1 and array.ndim <= len(shape):
        return np.full(math.prod(shape), array.item())
    return array.reshape(-1) if (1,) * (len(shape) - array.ndim) + array.shape == shape else None


def constants_bytes(module: tvm.IRModule) -> int:
    """Of the constants of a module's graphs."""
    found: list[GenericConst] = []
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(
                function, lambda each: found.append(each) if isinstance(each, GenericConst) else None
            )
    return sum(math.prod(each.value.shape) * each.value.dtype.itemsize for each in found)
