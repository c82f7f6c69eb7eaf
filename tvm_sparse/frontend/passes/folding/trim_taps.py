"""Leave out taps of a convolution that read only padding, as a dilated kernel has on a map smaller than itself.

DeepLab's 3x3 kernels of dilation 24 and 36 are 1x1 kernels on a map of 14x14, a ninth of the work.
"""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm.ir import Call, Expr, Var

from tvm_sparse.frontend.passes.relax_graph import (
    Graph,
    convolution_weight,
    rebuild,
    static_shape,
    with_padding,
    with_weight,
)


@dataclass(frozen=True)
class _Axis:
    """The taps along H or W that read an input at all, ``first`` to ``end - 1``, and the padding left for them."""

    first: int
    end: int
    before: int
    after: int


def trim_taps(module: tvm.IRModule) -> tvm.IRModule:
    """`module` whose convolutions have no outer rows and columns of taps that read only padding.

    Where all taps do, as beside the map that a stride skips, the weight is zeros.
    """
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        weight = convolution_weight(value)
        if weight is None:
            continue
        rows, columns = _axes(value, var, weight.shape[2:])
        if rows is None or columns is None:
            edits[var] = [(var, with_weight(value, np.zeros_like(weight)))]
            continue
        kept = weight[:, :, rows.first : rows.end, columns.first : columns.end]
        if kept.shape != weight.shape:
            padding = [rows.before, columns.before, rows.after, columns.after]
            edits[var] = [(var, with_padding(with_weight(value, kept), value.args[0], padding))]
    return rebuild(module, edits)


def _axes(convolution: Call, output: Var, taps: tuple[int, ...]) -> list[_Axis | None]:
    attrs, padding = convolution.attrs, [int(each) for each in convolution.attrs.padding]
    sizes, outputs = (static_shape(each) for each in (convolution.args[0], output))
    assert sizes is not None and outputs is not None, "convolution_weight admits known shapes only"
    return [
        _trimmed(taps[i], int(attrs.strides[i]), int(attrs.dilation[i]), padding[i::2], sizes[2 + i], outputs[2 + i])
        for i in (0, 1)
    ]


def _trimmed(taps: int, stride: int, dilation: int, padding: list[int], size: int, outputs: int) -> _Axis | None:
    """Along one axis; all taps where those kept would begin or end inside the input, None where none reads it."""
    before, after = padding
    # Where each tap begins, and the first output for which it reads nothing before the input.
    starts = [tap * dilation - before for tap in range(taps)]
    firsts = [max(0, -(start // stride)) for start in starts]
    pairs = enumerate(zip(starts, firsts, strict=True))
    used = [tap for tap, (start, first) in pairs if first < outputs and start + first * stride < size]
    if not used:
        return None
    first, end = used[0], used[-1] + 1
    trimmed = _Axis(first, end, before - first * dilation, after - (taps - end) * dilation)
    return trimmed if min(trimmed.before, trimmed.after) >= 0 else _Axis(0, taps, before, after)
