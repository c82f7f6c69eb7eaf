"""Which operator of a model a call of Relax that takes indices was made of, and whether -1 is the last element there.

The front ends note it while they import, `guard_indices` reads it. It travels as the source span of the call, as the
names of layers do.
"""

from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import Call, Expr, Op, SourceName, Span

# Operators of Relax that read or write where an input of theirs says.
INDEXED = frozenset(
    f"relax.{name}"
    for name in (
        "take",
        "gather_elements",
        "gather_nd",
        "index_tensor",
        "index_put",
        "scatter_elements",
        "scatter_nd",
        "vision.roi_align",
        "vision.roi_pool",
    )
)


@dataclass(frozen=True)
class Origin:
    """An operator's name in the model; with `counts_back` negative indices count from the end, else they are errors."""

    name: str
    counts_back: bool = True


def origin_of(call: Call) -> Origin:
    """The origin that was noted; else the name of Relax's operator, and what NumPy does with negative indices."""
    if call.span is None:
        return Origin(f"operator {call.op.name.removeprefix('relax.')}")
    return Origin(call.span.source_name.name, bool(call.span.line))


class NotingBuilder:
    """A `relax.BlockBuilder` that notes `origin` on each operator in `INDEXED` that goes through it."""

    def __init__(self, builder: Any, origin: Origin):
        self._builder = builder
        self._span = Span(SourceName(origin.name), int(origin.counts_back), 0, 0, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def emit(self, value: Expr, name_hint: str = "") -> Any:
        """As `relax.BlockBuilder.emit`."""
        return self._builder.emit(self.normalize(value), name_hint)

    def normalize(self, value: Expr) -> Any:
        """As `relax.BlockBuilder.normalize`."""
        noted = self._noted(value)
        found = self._builder.normalize(noted)
        # Where it binds arguments, it makes the call again, without its span.
        return found if found.same_as(noted) else self._builder.normalize(self._noted(found))

    def _noted(self, value: Expr) -> Expr:
        """`value`, which may be several calls within each other."""
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        arguments = [self._noted(argument) for argument in value.args]
        is_indexed = value.op.name in INDEXED and value.span is None
        if not is_indexed and all(new.same_as(old) for new, old in zip(arguments, value.args, strict=True)):
            return value
        return relax.Call(value.op, arguments, value.attrs, value.ty_args, self._span if is_indexed else value.span)
