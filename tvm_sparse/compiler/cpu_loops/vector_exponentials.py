"""Compute exponentials, sigmoids, tanh and erf of a CPU model by arithmetic, which LLVM turns into vectors.

TVM calls the C library for each element: GELUs alone would take a third of ConvNeXt's time. The polynomials of exp are
those of Cephes (Moshier), tanh is Eigen's quotient (MathFunctionsImpl.h), and erf XLA's (math.cc), all within 3.2e-7 of
the value. With a polynomial near zero and another with an exponential beyond GELUs take three times as long.
"""

import math
from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad

from tvm_sparse.compiler.rewriting.unscheduled import unscheduled_pass
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT32

# exp(x) is finite up to the first, and a normal number down to the second.
MOST, LEAST = 88.72283, -87.33654
# The logarithm of 2 in two parts, of which the first has few digits.
_LN2 = (0.693359375, -2.12194440e-4)
# Of exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2, the highest power first.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_BIAS, _MANTISSA_BITS = 127, 23
# x p(x^2) / q(x^2) for |x| up to where the function is 1, the highest powers first.
_TANH_ONE, _ERF_ONE = 7.90531111, 3.74392116
_TANH_OVER = (
    -2.76076837e-16,
    2.00018794e-13,
    -8.60467184e-11,
    5.12229725e-8,
    1.48572235e-5,
    6.37261954e-4,
    4.89352457e-3,
)
_TANH_UNDER = (1.19825836e-6, 1.18534706e-4, 2.26843474e-3, 4.89352504e-3)
_ERF_OVER = (2.29050653e-4, 3.40829091e-3, 5.09556942e-2, 1.85208321e-1, 1.12837911e0)
_ERF_UNDER = (-1.17916031e-7, 2.35479656e-5, 1.01796258e-3, 1.40704699e-2, 1.10985048e-1, 4.97469246e-1, 1.0)


@unscheduled_pass("vector_exponentials")
def vector_exponentials(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """`func` with those of its calls that compute in float32 as arithmetic; None where it has none."""
    found: list[Call] = []
    if _has_bfloat16(func):
        return None

    def rewrite(node: Call) -> Expr:
        by_arithmetic = _FUNCTIONS.get(getattr(node.op, "name", ""))
        if by_arithmetic is None or str(node.ty.dtype) != FLOAT32:
            return node
        found.append(node)
        return by_arithmetic(*node.args)

    body = tvm_ffi.structural_map(func.body, (Call, rewrite), order="post")
    return func.with_body(body) if found else None


def _has_bfloat16(func: tirx.PrimFunc) -> bool:
    """Whether it reads or writes such numbers: TVM's BF16ComputeLegalize is wrong where expressions bind variables."""
    found: list[str] = []
    loads = (TensorLoad, lambda load: found.append(str(load.ty.dtype)))
    stores = (tirx.BufferStore, lambda store: found.append(str(store.buffer.dtype)))
    tvm_ffi.structural_walk(func.body, [loads, stores])
    return BFLOAT16 in found


def exponential(x: Expr) -> Expr:
    """``exp(x)`` in float32, with infinity and NaN, and 0 for what is no normal number."""
    value, power, rest = (tirx.Var(name, x.ty) for name in ("value", "power", "rest"))
    # No minimum or maximum, which would not keep NaN.
    most, least = _number(MOST), _number(LEAST)
    bounded = tirx.Select(value > most, most, tirx.Select(value < least, least, value))
    whole = tirx.min(tirx.floor(bounded * _number(math.log2(math.e)) + _number(0.5)), _number(_BIAS))
    left = bounded - power * _number(_LN2[0]) - power * _number(_LN2[1])
    bits = (tirx.Cast("int32", power) + tirx.const(_BIAS, "int32")) << tirx.const(_MANTISSA_BITS, "int32")
    found = (_polynomial(_EXP, rest) * rest * rest + rest + _number(1)) * tirx.reinterpret(FLOAT32, bits)
    found = tirx.Let(power, whole, tirx.Let(rest, left, found))
    found = tirx.Select(value > _number(MOST), _number(math.inf), found)
    found = tirx.Select(value < _number(LEAST), _number(0), found)
    return tirx.Let(value, x, found)


def sigmoid(x: Expr) -> Expr:
    """``1 / (1 + exp(-x))`` in float32."""
    return _number(1) / (_number(1) + exponential(_number(0) - x))


def tanh(x: Expr) -> Expr:
    """``tanh(x)`` in float32."""
    return _rational(x, _TANH_ONE, _TANH_OVER, _TANH_UNDER)


def error_function(x: Expr) -> Expr:
    """``erf(x)`` in float32."""
    return _rational(x, _ERF_ONE, _ERF_OVER, _ERF_UNDER)


_FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "tirx.exp": exponential,
    "tirx.sigmoid": sigmoid,
    "tirx.tanh": tanh,
    "tirx.erf": error_function,
}


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    found = _number(coefficients[0])
    for coefficient in coefficients[1:]:
        found = found * x + _number(coefficient)
    return found


def _rational(x: Expr, limit: float, over: Sequence[float], under: Sequence[float]) -> Expr:
    """A quotient of two polynomials of the square of `x`, times `x`, which is no larger than `limit`."""
    value, bounded, square = (tirx.Var(name, x.ty) for name in ("value", "bounded", "square"))
    most, least = _number(limit), _number(-limit)
    within = tirx.Select(value > most, most, tirx.Select(value < least, least, value))
    found = bounded * _polynomial(over, square) / _polynomial(under, square)
    return tirx.Let(value, x, tirx.Let(bounded, within, tirx.Let(square, bounded * bounded, found)))


def _number(value: float) -> Expr:
    return tirx.const(value, FLOAT32)
