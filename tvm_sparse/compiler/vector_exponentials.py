"""Compute exponentials and sigmoids of a CPU model by arithmetic, which LLVM turns into vectors.

TVM calls the C library for each element: EfficientNet-B0 took 22.3 ms on one core of a Zen 5 so, and takes 12.3. The
polynomial is that of Cephes (Moshier), within 3e-7 of the value.
"""

import math

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
_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_BIAS, _MANTISSA_BITS = 127, 23


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.vector_exponentials")
def vector_exponentials(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with the exponentials and sigmoids of every unscheduled function, in float32, as arithmetic."""
    return schedule_each(module, _rewritten)


def _rewritten(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    found: list[Call] = []

    def rewrite(node: Call) -> Expr:
        name = getattr(node.op, "name", "")
        if name not in ("tirx.exp", "tirx.sigmoid") or str(node.ty.dtype) != FLOAT32:
            return node
        found.append(node)
        (x,) = node.args
        return exponential(x) if name == "tirx.exp" else _number(1) / (_number(1) + exponential(_number(0) - x))

    body = tvm_ffi.structural_map(func.body, (Call, rewrite), order="post")
    return func.with_body(body) if found else None


def exponential(x: Expr) -> Expr:
    """``exp(x)`` in float32, with infinity and NaN, and 0 for what is no normal number."""
    value, power, rest = (tirx.Var(name, x.ty) for name in ("value", "power", "rest"))
    bounded = tirx.min(tirx.max(value, _number(LEAST)), _number(MOST))
    whole = tirx.min(tirx.floor(bounded * _number(math.log2(math.e)) + _number(0.5)), _number(_BIAS))
    left = bounded - power * _number(_LN2[0]) - power * _number(_LN2[1])
    sum_ = _number(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        sum_ = sum_ * rest + _number(coefficient)
    bits = (tirx.Cast("int32", power) + tirx.const(_BIAS, "int32")) << tirx.const(_MANTISSA_BITS, "int32")
    found = (sum_ * rest * rest + rest + _number(1)) * tirx.reinterpret(FLOAT32, bits)
    found = tirx.Let(power, whole, tirx.Let(rest, left, found))
    found = tirx.Select(value > _number(MOST), _number(math.inf), found)
    found = tirx.Select(value < _number(LEAST), _number(0), found)
    return tirx.Let(value, x, tirx.Select(tirx.isnan(value), value, found))


def _number(value: float) -> Expr:
    return tirx.const(value, FLOAT32)
