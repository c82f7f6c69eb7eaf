"""Operators of Relax that compute as well in NHWC as in NCHW."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Op, Var

from tvm_sparse.frontend.passes.relax_graph import ELEMENTWISE, is_call, static_shape

POOLS = {"relax.nn.max_pool2d": relax.op.nn.max_pool2d, "relax.nn.avg_pool2d": relax.op.nn.avg_pool2d}


def tensors_of(value: Expr) -> list[Expr]:
    """The tensors (N, C, H, W), but constants, that such an operator reads; none of any other operator."""
    if not isinstance(value, Call) or not isinstance(value.op, Op):
        return []
    if value.op.name in POOLS:
        tensors, fits = [value.args[0]], (value.attrs.layout, value.attrs.out_layout) == ("NCHW", "NCHW")
    elif is_call(value, "relax.concat"):
        tensors, fits = list(value.args[0].fields), value.attrs.axis is not None and int(value.attrs.axis) == 1
    elif value.op.name in ELEMENTWISE:
        tensors = [each for each in value.args if isinstance(each, Var)]
        # What is stretched along some axis but is no constant would have to be turned as well.
        fits = all(static_shape(each) == static_shape(value) for each in tensors)
        fits = fits and all(_is_turned(each) for each in value.args if isinstance(each, GenericConst))
    else:
        return []
    fits = fits and all(isinstance(each, Var) and len(static_shape(each) or ()) == 4 for each in tensors)
    return tensors if fits else []


def turned(value: Call, twins: Mapping[Expr, Var]) -> Call:
    """The operator on the same tensors in NHWC, as `twins` has them."""
    if value.op.name in POOLS:
        attrs = value.attrs
        sizes = (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation, attrs.ceil_mode)
        pool = POOLS[value.op.name]
        return pool(twins[value.args[0]], *map(_plain, sizes), bool(attrs.count_include_pad), "NHWC", "NHWC")
    if is_call(value, "relax.concat"):
        return relax.op.concat([twins[each] for each in value.args[0].fields], axis=3)
    arguments = [_turned(each) if isinstance(each, GenericConst) else twins.get(each, each) for each in value.args]
    return relax.Call(value.op, arguments, value.attrs, value.ty_args)


def _plain(size: object) -> object:
    return [int(each) for each in size] if isinstance(size, Sequence) else bool(size)


def _is_turned(constant: GenericConst) -> bool:
    """Whether a constant's axes are those of the tensor, or it has one element."""
    shape = constant.value.shape
    return len(shape) == 4 or math.prod(shape) == 1


def _turned(constant: GenericConst) -> Expr:
    array = constant.value.numpy()
    return relax.const(np.ascontiguousarray(array.transpose(0, 2, 3, 1))) if array.ndim == 4 else constant
