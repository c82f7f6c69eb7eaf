"""Vectors of pixels, of four channels in an int32, where nothing is multiplied: any processor has these."""

from collections.abc import Callable

from tvm import tirx

from tvm_sparse.conv.codes import CODES, FOUR
from tvm_sparse.conv.dtypes import FLOAT32

# Pixels of a vector, which processors of smaller ones part.
INT32, LANES = "int32", 16


def pixels_at(first: tirx.Expr, lanes: int, step: int = 1) -> tirx.Expr:
    """The index of `lanes` elements from `first` on, `step` apart; TVM knows no vector of one."""
    return tirx.Ramp(first, step, lanes) if lanes > 1 else first


def vector_type(dtype: str, lanes: int) -> str:
    """The type of so many elements of `dtype`."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def of_all(value: float, dtype: str, lanes: int) -> tirx.Expr:
    """`value` in every lane."""
    return tirx.const(value, dtype) if lanes == 1 else tirx.Broadcast(tirx.const(value, dtype), lanes)


def in_four(code_of: Callable[[int], tirx.Expr], least: int, lanes: int) -> tirx.Expr:
    """Codes, float32, of each of four channels, less `least`, as the bytes of int32."""
    found = of_all(0, INT32, lanes)
    for channel in range(FOUR):
        code = code_of(channel) - of_all(float(least), FLOAT32, lanes)
        found = found | (tirx.Cast(vector_type(INT32, lanes), code) << of_all(8 * channel, INT32, lanes))
    return found


def out_of_four(bytes_: tirx.Expr, channel: int, least: int, lanes: int) -> tirx.Expr:
    """The codes, float32, of one of four channels, of which `bytes_` has the bytes, less `least`, in int32."""
    byte = (bytes_ >> of_all(8 * channel, INT32, lanes)) & of_all(CODES - 1, INT32, lanes)
    return tirx.Cast(vector_type(FLOAT32, lanes), byte + of_all(least, INT32, lanes))
