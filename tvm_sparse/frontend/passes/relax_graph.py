"""The function ``main`` as definitions and uses, which is all that the passes need to see and to edit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, GenericConst, Var


@dataclass(frozen=True)
class Graph:
    """What each variable of ``main`` is bound to, in program order, and which bound variables use it."""

    definitions: dict[Var, Expr]
    users: dict[Var, list[Var]]
    returned: frozenset[Var]

    @classmethod
    def of(cls, module: tvm.IRModule) -> "Graph":
        """The graph of ``main``; bindings inside branches and nested functions count as one use."""
        body = module["main"].body
        definitions = {binding.var: binding.value for block in body.blocks for binding in block.bindings}
        users: dict[Var, list[Var]] = {var: [] for var in definitions}
        for var, value in definitions.items():
            for used in relax.analysis.free_vars(value):
                users.setdefault(used, []).append(var)
        return cls(definitions, users, frozenset(relax.analysis.free_vars(body.body)))

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
    """The weight (K, C / groups, R, S) of `value` where that is a 2-D convolution our kernels can replace.

    That is: NCHW, OIHW, float32 throughout, every size known, constant weight.
    """
    if not is_call(value, "relax.nn.conv2d"):
        return None
    data, weight = value.args
    attrs = value.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", "NCHW"):
        return None
    if not isinstance(weight, GenericConst) or not all(map(is_float32, (data, weight, value))):
        return None
    return weight.value.numpy() if static_shape(data) and static_shape(value) else None


def channel_vector(value: Expr, channels: int) -> np.ndarray | None:
    """A constant that broadcasts along the channels of NCHW only, as a float64 (channels,) array, else None."""
    if not isinstance(value, GenericConst) or not is_float32(value):
        return None
    array = value.value.numpy().astype(np.float64)
    shape = (1,) * (4 - array.ndim) + array.shape
    if array.size == 1 and array.ndim <= 4:
        return np.full(channels, array.item())
    return array.reshape(-1) if shape == (1, channels, 1, 1) else None
