"""ReLUs, clips, maxima and minima that keep NaN and know infinity, where no convolution took them in.

Of NaN and a number TVM's own give the number. They start from the largest finite number where there may be infinities
alone, by which attention asks whether a mask leaves nothing in a row; and the place of such an extreme is -1.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.ir import Call, Expr
from tvm.tirx import FloatImm, PrimFunc

from tvm_sparse.codegen.tir.bounded import bounded


def _relu(builder: relax.BlockBuilder, call: Call) -> Expr:
    return builder.call_te(_bounded, call.args[0], 0, primfunc_name_hint="relu")


def _clip(builder: relax.BlockBuilder, call: Call) -> Expr:
    x, low, high = call.args
    if "float" not in str(x.ty.dtype):
        return _of_tvm(builder, call)
    return builder.call_te(_bounded, x, low.value, high.value, primfunc_name_hint="clip")


def _bounded(x: te.Tensor, low: float, high: float | None = None) -> te.Tensor:
    bounds = [tirx.const(each, x.dtype) for each in (low, high) if each is not None]
    return te.compute(x.shape, lambda *index: bounded(x(*index), *bounds))


def _farther(builder: relax.BlockBuilder, call: Call, is_farther: Callable[[Expr, Expr], Expr]) -> Expr:
    """Of two tensors, the first where it is farther or NaN."""
    if "float" not in str(call.ty.dtype):
        return _of_tvm(builder, call)

    def farther(*tensors: te.Tensor) -> te.Tensor:
        def at(*index: tirx.Var) -> Expr:
            x, y = (_element(each, index) for each in tensors)
            return tirx.Select(tirx.any(is_farther(x, y), tirx.isnan(x)), x, y)

        return te.compute(list(call.ty.shape), at)

    return builder.call_te(farther, *call.args, primfunc_name_hint=call.op.name.removeprefix("relax."))


def _element(x: te.Tensor, index: Sequence[tirx.Var]) -> Expr:
    """Of `x` as it is broadcast to a shape that `index` is of."""
    last = index[len(index) - len(x.shape) :]
    return x(*(0 if int(size) == 1 else at for size, at in zip(x.shape, last, strict=True)))


def _place(builder: relax.BlockBuilder, call: Call) -> Expr:
    place = builder.emit(_of_tvm(builder, call))
    return builder.call_te(topi.maximum, place, tirx.const(0, str(call.ty.dtype)))


def _from_infinity(builder: relax.BlockBuilder, call: Call) -> Expr:
    """With infinities for the numbers of TVM's function: it has none but that from which the reduction starts."""
    made = _of_tvm(builder, call)
    function: PrimFunc = builder.get()[made.args[0]]
    infinity = (FloatImm, lambda each: FloatImm(each.ty.dtype, math.copysign(math.inf, each.value)))
    builder.update_func(made.args[0], tvm_ffi.structural_map(function, infinity))
    return made


def _of_tvm(builder: relax.BlockBuilder, call: Call) -> Expr:
    return call.op.get_attr("FLegalize")(builder, call)


# Operator -> what makes a function of it.
EXTREMES = {
    "relax.nn.relu": _relu,
    "relax.clip": _clip,
    "relax.maximum": partial(_farther, is_farther=lambda x, y: x > y),
    "relax.minimum": partial(_farther, is_farther=lambda x, y: x < y),
    **dict.fromkeys(("relax.argmax", "relax.argmin"), _place),
    **dict.fromkeys(("relax.max", "relax.min"), _from_infinity),
}
