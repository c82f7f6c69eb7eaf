"""Vectors of 16 pixels, of four channels in an int32: sums of four filters as their codes."""

from collections.abc import Callable, Sequence
from itertools import product

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.byte_form import ByteForm, Stage
from tvm_sparse.conv.codes import CODES, FOUR
from tvm_sparse.conv.dtypes import FLOAT32

INT32, LANES = "int32", 16
BYTES = "int8x64"
DOT = "llvm.x86.avx512.vpdpbusd.512"
_INTS, _FLOATS = f"{INT32}x{LANES}", f"{FLOAT32}x{LANES}"
# Of each quarter of a vector, four pixels of four channels: from channel by channel to pixel by pixel.
_BY_PIXEL = [
    LANES * quarter + FOUR * channel + pixel
    for quarter, pixel, channel in product(range(LANES // FOUR), range(FOUR), range(FOUR))
]


def vector_at(first: tirx.Expr | int) -> tirx.Expr:
    """The index of 16 elements from `first` on."""
    return tirx.Ramp(first, 1, LANES)


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


def stored(y: tirx.Var, index: tuple, vector: tirx.Expr, first: int, count: int) -> None:
    """Store `count` lanes of a `vector`, from the lane `first` on, from `index` on."""
    *front, column = index
    if count < LANES:
        vector = tirx.Shuffle([vector], list(range(first, first + count)))
    T.buffer_store(y, vector, [*front, column if count == 1 else tirx.Ramp(column, 1, count)])


def loaded(x: tirx.Var, index: tuple, first: int, count: int) -> tirx.Expr:
    """A vector with `count` elements from `index` on, from the lane `first` on; others repeat one of them."""
    *front, column = index
    if count == LANES:
        return tirx.BufferLoad(x, [*front, vector_at(column)])
    if count == 1:
        return tirx.Broadcast(x[index], LANES)
    some = tirx.BufferLoad(x, [*front, tirx.Ramp(column, 1, count)])
    # TVM takes no more lanes out of vectors than these have.
    return tirx.Shuffle([some] * -(-LANES // count), [min(max(0, lane - first), count - 1) for lane in range(LANES)])


def codes_of(
    form: ByteForm, sums: Sequence[tirx.Expr], number: Callable[[str, int], tirx.Expr], residual: Sequence[tirx.Expr]
) -> tirx.Expr:
    """The codes of four vectors of `sums`, as the bytes of one: quarter by quarter, of each of the four in turn.

    `number` gives one of the form's for the filters of such a vector, and `residual` has one for each, if there is any.
    """
    *front, last = range(len(form.stages))
    found = []
    for index, sum_ in enumerate(sums):
        value, other = tirx.Cast(_FLOATS, sum_), None
        if residual:
            other = tirx.Cast(_FLOATS, residual[index] + integers(form.residual_least or 0))

        def scaled(at: int, value: tirx.Expr, index: int = index, other: tirx.Expr | None = other) -> tirx.Expr:
            stage, value = form.stages[at], value * number(f"own{at}", index)
            value = value if stage.shift is None else value + number(f"shift{at}", index)
            return value if stage.other is None else value + other * _floats(float(stage.other))

        for at in front:
            rounded = tirx.call_llvm_pure_intrin(_FLOATS, "llvm.rint", scaled(at, value))
            value = tirx.max(tirx.min(rounded, _floats(form.stages[at].greatest)), _floats(form.stages[at].least))
        code = tirx.call_llvm_pure_intrin(_INTS, "llvm.lrint", scaled(last, value))
        found.append(_within(form, form.stages[last], code))
    pairs = [tirx.call_llvm_pure_intrin("int16x32", "llvm.x86.avx512.packssdw.512", *found[i : i + 2]) for i in (0, 2)]
    return tirx.call_llvm_pure_intrin(BYTES, "llvm.x86.avx512.packuswb.512", *pairs)


def by_pixel(codes: tirx.Expr) -> tirx.Expr:
    """The `codes_of` four channels as int32 of a pixel each."""
    return tirx.reinterpret(_INTS, tirx.Shuffle([codes], _BY_PIXEL))


def _within(form: ByteForm, last: Stage, code: tirx.Expr) -> tirx.Expr:
    """`code` less the least of its tensor, clipped, as far as packing it does not clip it to a byte."""
    least, greatest = last.least - form.least, last.greatest - form.least
    code = code - integers(form.least) if form.least else code
    code = tirx.max(code, integers(least)) if least > 0 else code
    return tirx.min(code, integers(greatest)) if greatest < CODES - 1 else code


def integers(value: int) -> tirx.Expr:
    """A vector of an integer."""
    return tirx.Broadcast(tirx.const(value, INT32), LANES)


def _floats(value: float) -> tirx.Expr:
    return tirx.Broadcast(tirx.const(value, FLOAT32), LANES)
