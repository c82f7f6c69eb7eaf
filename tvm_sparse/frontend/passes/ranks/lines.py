"""Operators along lines (N, C, W), as those along the rows of maps (N, C, 1, W)."""

from collections.abc import Callable, Iterable

from tvm import relax
from tvm.ir import Call, Expr


def _of_row(along: Iterable[int], fill: int) -> list[int]:
    """Numbers for an axis of one element, `fill`, beside those of the line, before or behind it."""
    return [number for each in along for number in (fill, int(each))]


def _pool(pool: Callable[..., Expr]) -> Callable[[Expr, Call], Expr]:
    def pooled(maps: Expr, call: Call) -> Expr:
        attrs = call.attrs
        numbers = (_of_row(each, 1) for each in (attrs.pool_size, attrs.strides))
        padding, dilation = _of_row(attrs.padding, 0), _of_row(attrs.dilation, 1)
        return pool(maps, *numbers, padding, dilation, attrs.ceil_mode, attrs.count_include_pad)

    return pooled


def _pad(maps: Expr, call: Call) -> Expr:
    *before, begin, end = (int(each) for each in call.attrs.pad_width)
    return relax.op.nn.pad(maps, [*before, 0, 0, begin, end], call.attrs.pad_mode, call.attrs.pad_value)


PAD = "relax.nn.pad"
# Operator -> what it is of maps, given these and a call of it on lines.
LINES: dict[str, Callable[[Expr, Call], Expr]] = {
    "relax.nn.avg_pool1d": _pool(relax.op.nn.avg_pool2d),
    "relax.nn.max_pool1d": _pool(relax.op.nn.max_pool2d),
    PAD: _pad,
}
