"""Torch operators on mixed element types, as operators on one type that casts come before.

TVM takes a number beside a tensor for one of the tensor's type: ``integers * 1.5`` becomes ``integers * 1``. Each
function here is a decomposition as `ExportedProgram.run_decompositions` calls it; NotImplemented leaves the operator.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

Decomposition = Callable[..., Any]

# Operators of two terms whose result has the common type of both.
_ARITHMETIC = (
    "maximum.default",
    "minimum.default",
    "remainder.Tensor",
    "remainder.Scalar",
    "fmod.Tensor",
    "fmod.Scalar",
    "floor_divide.default",
    "pow.Tensor_Tensor",
    "pow.Tensor_Scalar",
    "pow.Scalar",
    "bitwise_and.Tensor",
    "bitwise_or.Tensor",
    "bitwise_xor.Tensor",
)
_COMPARISONS = ("eq", "lt", "le", "gt", "ge")
# Of integers torch computes these in float32.
_OF_FLOATS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1", "log", "log10", "log1p"),
    *("log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
)


def decompositions() -> dict[str, Decomposition]:
    """Operator -> how it is written on one element type."""
    table = {name: _common(name) for name in _ARITHMETIC}
    table |= {f"{kind}.{each}": _comparison(f"{kind}.{each}") for kind in _COMPARISONS for each in ("Tensor", "Scalar")}
    table |= {f"{kind}.default": _of_floats(f"{kind}.default") for kind in _OF_FLOATS}
    return table | {
        "add.Tensor": _sum("add.Tensor", 1),
        "sub.Tensor": _sum("sub.Tensor", 1),
        "rsub.Tensor": _reversed_difference,
        "rsub.Scalar": _reversed_difference,
        "mul.Tensor": _product,
        "div.Tensor": _quotient,
        "div.Tensor_mode": _rounded_quotient,
        "ne.Tensor": _unequal,
        "ne.Scalar": _unequal,
        "clamp.default": _clamp,
        "clamp.Tensor": _clamp,
        "clamp_min.default": _clamp,
        "clamp_max.default": lambda x, high: _clamp(x, None, high),
        "isfinite.default": _is_finite,
        "where.self": _choice,
        "cat.default": _joined,
    }


def aten(name: str) -> Any:
    """The operator of a name such as ``add.Tensor``."""
    kind, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, kind), overload)


def cast(x: Any, dtype: Any) -> Any:
    """`x` in an element type; a number stays one, a boolean becomes a number."""
    if isinstance(x, torch.Tensor):
        return x if x.dtype == dtype else x.to(dtype)
    return int(x) if isinstance(x, bool) and dtype != torch.bool else x


def _is_cast(dtype: Any, *terms: Any) -> bool:
    return all(x.dtype == dtype if isinstance(x, torch.Tensor) else not isinstance(x, bool) for x in terms)


def _tensor(x: Any, dtype: Any) -> Any:
    """`x` as a tensor: of some operators TVM makes numbers int32 and float32, whatever the other term is."""
    return cast(x, dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype)


def _common(name: str) -> Decomposition:
    def decompose(a: Any, b: Any) -> Any:
        dtype = torch.result_type(a, b)
        of_tensors = name in ("floor_divide.default", "remainder.Tensor", "fmod.Tensor")
        terms = (_tensor(a, dtype), _tensor(b, dtype)) if of_tensors else (cast(a, dtype), cast(b, dtype))
        return NotImplemented if terms[0] is a and terms[1] is b else aten(name)(*terms)

    return decompose


def _comparison(name: str) -> Decomposition:
    def decompose(a: Any, b: Any) -> Any:
        dtype = torch.result_type(a, b)
        # LLVM compares booleans as fractions, and fails.
        dtype = torch.int32 if dtype == torch.bool else dtype
        return NotImplemented if _is_cast(dtype, a, b) else aten(name)(cast(a, dtype), cast(b, dtype))

    return decompose


def _of_floats(name: str) -> Decomposition:
    def decompose(x: Any) -> Any:
        return NotImplemented if x.is_floating_point() else aten(name)(x.float())

    return decompose


def _sum(name: str, neutral: float) -> Decomposition:
    def decompose(a: Any, b: Any, *, alpha: float = neutral) -> Any:
        dtype = torch.result_type(a, b)
        if dtype == torch.bool:
            return torch.logical_or(a, b) if alpha == neutral else NotImplemented
        if alpha == neutral and _is_cast(dtype, a, b):
            return NotImplemented
        return aten(name)(cast(a, dtype), cast(b, dtype) * alpha if alpha != neutral else cast(b, dtype))

    return decompose


def _reversed_difference(a: Any, b: Any, alpha: float = 1) -> Any:
    return -(a * alpha if alpha != 1 else a) + b


def _product(a: Any, b: Any) -> Any:
    dtype = torch.result_type(a, b)
    if dtype == torch.bool:
        return torch.logical_and(a, b)
    return NotImplemented if _is_cast(dtype, a, b) else cast(a, dtype) * cast(b, dtype)


def _quotient(a: Any, b: Any) -> Any:
    dtype = torch.result_type(a, b)
    dtype = dtype if dtype.is_floating_point else torch.float32
    return NotImplemented if _is_cast(dtype, a, b) else cast(a, dtype) / cast(b, dtype)


def _rounded_quotient(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return a / b
    dtype = torch.result_type(a, b)
    if rounding_mode == "floor":
        return torch.floor_divide(a, b)
    if dtype.is_floating_point:
        return torch.trunc(a / b)
    terms = _tensor(a, dtype), _tensor(b, dtype)
    return NotImplemented if terms[0] is a and terms[1] is b else torch.div(*terms, rounding_mode=rounding_mode)


def _unequal(a: Any, b: Any) -> Any:
    """NaN differs from everything, which it does not in TVM."""
    return (a == b).logical_not()


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    bounds = [each for each in (low, high) if each is not None]
    dtype = x.dtype
    for each in bounds:
        dtype = torch.promote_types(dtype, torch.result_type(x, each))
    numbers = not any(isinstance(each, torch.Tensor) for each in bounds)
    # TVM's clip has two bounds, in order, and no infinite ones.
    if numbers and dtype.is_floating_point and len(bounds) == 2 and low <= high:
        return NotImplemented if x.dtype == dtype else torch.clamp(cast(x, dtype), low, high)
    x = cast(x, dtype)
    if low is not None:
        x = torch.maximum(x, _tensor(low, dtype))
    return x if high is None else torch.minimum(x, _tensor(high, dtype))


def _is_finite(x: Any) -> Any:
    return x.abs() < math.inf if x.is_floating_point() else NotImplemented


def _choice(condition: Any, a: Any, b: Any) -> Any:
    dtype = torch.result_type(a, b)
    return NotImplemented if _is_cast(dtype, a, b) else torch.where(condition, cast(a, dtype), cast(b, dtype))


def _joined(tensors: Any, dim: int = 0) -> Any:
    dtype = tensors[0].dtype
    for each in tensors:
        dtype = torch.promote_types(dtype, each.dtype)
    return NotImplemented if _is_cast(dtype, *tensors) else torch.cat([cast(each, dtype) for each in tensors], dim)
