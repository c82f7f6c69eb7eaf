"""Sums of four filters as their codes, as a `ByteForm` says."""

from collections.abc import Callable, Sequence

from tvm import tirx

from tvm_sparse.conv.byte_form import ByteForm, Stage
from tvm_sparse.conv.codes import CODES
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit


def codes_of(
    unit: ByteUnit,
    form: ByteForm,
    sums: Sequence[tirx.Expr],
    number: Callable[[str, int], tirx.Expr],
    residual: Sequence[tirx.Expr],
) -> tirx.Expr:
    """The codes of four vectors of `sums`, as the bytes of one: quarter by quarter, of each of the four in turn.

    `number` gives one of the form's for the filters of such a vector, and `residual` has one for each, if there is any.
    """
    kind, (*front, last), found = f"{FLOAT32}x{unit.lanes}", range(len(form.stages)), []

    def all_of(value: float) -> tirx.Expr:
        return tirx.Broadcast(tirx.const(value, FLOAT32), unit.lanes)

    for index, sum_ in enumerate(sums):
        value, other = tirx.Cast(kind, sum_), None
        if residual:
            other = tirx.Cast(kind, residual[index] + unit.all_of(form.residual_least or 0))

        def scaled(at: int, value: tirx.Expr, index: int = index, other: tirx.Expr | None = other) -> tirx.Expr:
            stage, value = form.stages[at], value * number(f"own{at}", index)
            value = value if stage.shift is None else value + number(f"shift{at}", index)
            return value if stage.other is None else value + other * all_of(float(stage.other))

        for at in front:
            rounded = tirx.call_llvm_pure_intrin(kind, "llvm.rint", scaled(at, value))
            value = tirx.max(tirx.min(rounded, all_of(form.stages[at].greatest)), all_of(form.stages[at].least))
        code = tirx.call_llvm_pure_intrin(unit.ints, "llvm.lrint", scaled(last, value))
        found.append(_within(unit, form, form.stages[last], code))
    return unit.narrowed(found)


def _within(unit: ByteUnit, form: ByteForm, last: Stage, code: tirx.Expr) -> tirx.Expr:
    """`code` less the least of its tensor, clipped, as far as packing it does not clip it to a byte."""
    least, greatest = last.least - form.least, last.greatest - form.least
    code = code - unit.all_of(form.least) if form.least else code
    code = tirx.max(code, unit.all_of(least)) if least > 0 else code
    return tirx.min(code, unit.all_of(greatest)) if greatest < CODES - 1 else code
