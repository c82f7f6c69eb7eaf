"""Compute exponentials, sigmoids, tanh and erf of a CPU model by arithmetic, which LLVM turns into vectors.

TVM calls the C library for each element: GELUs alone would take a third of ConvNeXt's time. The polynomials of exp and
tanh are those of Cephes (Moshier), and those of erf ONNX Runtime's (MLAS, erf.cpp), all within 3e-7 of the value.
"""

import math
from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr

from tvm_sparse.compiler.unscheduled import schedule_each
from tvm_sparse.conv.dtypes import FLOAT32

# exp(x) is finite up to the first, and a normal number down to the second.
MOST, LEAST = 88.72283, -87.33654
# The logarithm of 2 in two parts, of which the first has few digits.
_LN2 = (0.693359375, -2.12194440e-4)
# Of exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2, the highest power first.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_BIAS, _MANTISSA_BITS = 127, 23
# Of tanh(x) = x + x^3 p(x^2) for |x| up to the limit.
_TANH_NEAR = 0.625
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
# Of erf(x) = x + x p(x^2) for |x| up to the limit, and 1 - exp(-x - x p(x)) from there to where it is 1.
_ERF_NEAR, _ERF_ONE = 0.921875, 3.925
_ERF_SMALL = (-5.99104969e-4, 4.99339588e-3, -2.67667342e-2, 1.12818025e-1, -3.76124859e-1, 1.28379151e-1)
_ERF_BIG = (1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2, 1.06777847e-1, 6.34846687e-1, 1.28717512e-1)


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.vector_exponentials")
def vector_exponentials(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with those calls of every unscheduled function, in float32, as arithmetic."""
    return schedule_each(module, _rewritten)


def _rewritten(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    found: list[Call] = []

    def rewrite(node: Call) -> Expr:
        by_arithmetic = _FUNCTIONS.get(getattr(node.op, "name", ""))
        if by_arithmetic is None or str(node.ty.dtype) != FLOAT32:
            return node
        found.append(node)
        return by_arithmetic(*node.args)

    body = tvm_ffi.structural_map(func.body, (Call, rewrite), order="post")
    return func.with_body(body) if found else None


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
    """``tanh(x)`` in float32: near zero a polynomial, else ``1 - 2 / (1 + exp(2 |x|))`` with the sign of x."""
    value = tirx.Var("value", x.ty)
    square = value * value
    near = value + value * square * _polynomial(_TANH, square)
    far = _number(1) - _number(2) / (_number(1) + exponential(_magnitude(value) * _number(2)))
    return tirx.Let(value, x, _by_size(value, _TANH_NEAR, near, far))


def error_function(x: Expr) -> Expr:
    """``erf(x)`` in float32: near zero a polynomial, else ``1 - exp(-p(|x|))`` with the sign of x."""
    value, size = tirx.Var("value", x.ty), tirx.Var("size", x.ty)
    near = value + value * _polynomial(_ERF_SMALL, value * value)
    far = _number(1) - exponential(_number(0) - (size + size * _polynomial(_ERF_BIG, size)))
    most = tirx.Select(_magnitude(value) > _number(_ERF_ONE), _number(_ERF_ONE), _magnitude(value))
    return tirx.Let(value, x, _by_size(value, _ERF_NEAR, near, tirx.Let(size, most, far)))


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


def _magnitude(x: Expr) -> Expr:
    return tirx.Select(x < _number(0), _number(0) - x, x)


def _by_size(x: Expr, limit: float, near: Expr, far: Expr) -> Expr:
    """`near` where ``|x|`` is less than `limit`, else `far`, which is of ``|x|``, with the sign of x."""
    sign = tirx.Select(x < _number(0), _number(-1), _number(1))
    return tirx.Select(_magnitude(x) < _number(limit), near, sign * far)


def _number(value: float) -> Expr:
    return tirx.const(value, FLOAT32)
