"""Merge zero padding before a convolution into the convolution, which then reads the unpadded input."""

import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.frontend.passes.relax_graph import Graph, convolution_weight, is_call, rebuild, with_padding


def fold_padding(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with ``conv2d(pad(x, zeros))`` rewritten as one convolution with more padding.

    The padding itself stays where something else reads it, and is dead code otherwise.
    """
    graph = Graph.of(module)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in graph.definitions.items():
        if convolution_weight(value) is None:
            continue
        source = graph.definitions.get(value.args[0])
        if source is not None and (extra := _zeros_added(source)) is not None:
            padding = [int(own) + added for own, added in zip(value.attrs.padding, extra, strict=True)]
            edits[var] = [(var, with_padding(value, source.args[0], padding))]
    return relax.transform.DeadCodeElimination(["main"])(rebuild(module, edits)) if edits else module


def _zeros_added(value: Expr) -> tuple[int, int, int, int] | None:
    """(top, left, bottom, right) where `value` pads H and W with zeros, else None."""
    if not is_call(value, "relax.nn.pad") or value.attrs.pad_mode != "constant" or _pad_value(value) != 0:
        return None
    n0, n1, c0, c1, top, bottom, left, right = [int(width) for width in value.attrs.pad_width]
    added = (top, left, bottom, right)
    return added if (n0, n1, c0, c1) == (0, 0, 0, 0) and min(added) >= 0 else None


def _pad_value(value: Call) -> float | None:
    if len(value.args) > 1:
        constant = value.args[1]
        return float(constant.value.numpy()) if isinstance(constant, GenericConst) else None
    return float(value.attrs.pad_value)
