"""Means over maps in half precision, as one function each: what is added is widened there, and not written before."""

import math
from collections.abc import Sequence

import tvm
from tvm import relax, te, tirx
from tvm.ir import Expr, Var

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.storage import is_half
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, rebuild, static_shape
from tvm_sparse.scheduling.cudnn_calls import layout_change_of


def half_means(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with such means of tensors (N, C, H, W), which are read in NHWC where they were converted from that."""
    builder, graph = relax.BlockBuilder(module), Graph.of(module)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in graph.definitions.items():
        wide = graph.definitions.get(value.args[0]) if _is_of_maps(value) else None
        user = graph.only_user(var)
        if wide is None or user is None or not is_call(wide, "relax.astype") or not is_call(user[1], "relax.astype"):
            continue
        (read,), (result, _), layout = wide.args, user, "nchw"
        if not is_half(str(read.ty.dtype)) or result.ty.dtype != read.ty.dtype:
            continue
        change = graph.definitions.get(read)
        if change is not None and _turns_back(module, change):
            (read,), layout = change.args[1], "nhwc"
        func = _mean(static_shape(read) or (), layout, static_shape(result) or (), str(read.ty.dtype))
        call = relax.call_tir(builder.add_func(func, f"mean_of_{layout}"), relax.Tuple([read]), result.ty)
        edits[var], edits[result] = [], [(result, call)]
    return rebuild(builder.get(), edits)


def _is_of_maps(value: Expr) -> bool:
    """Whether it is a mean of each of four axes' last two."""
    if not is_call(value, "relax.mean") or value.attrs.axis is None or len(static_shape(value.args[0]) or ()) != 4:
        return False
    return {int(each) % 4 for each in value.attrs.axis} == {2, 3}


def _turns_back(module: tvm.IRModule, value: Expr) -> bool:
    """Whether it converts from NHWC."""
    change = layout_change_of(module[value.args[0]]) if is_call(value, "relax.call_tir") else None
    return change is not None and change.to == "nchw"


def _mean(shape: Sequence[int], layout: str, written: Sequence[int], dtype: str) -> tirx.PrimFunc:
    """Of a tensor that lies in `layout`; what is written has a value for each image and channel."""
    x = te.placeholder(shape, dtype, "x")
    _, *sizes = shape
    map_size = sizes[1:] if layout == "nchw" else sizes[:-1]
    axes = [te.reduce_axis((0, each)) for each in map_size]

    def total(image: tirx.Var, channel: tirx.Var, *_: tirx.Var) -> Expr:
        at = (channel, *axes) if layout == "nchw" else (*axes, channel)
        return te.sum(x(image, *at).astype(FLOAT32), axis=axes)

    sums = te.compute(written, total, "total")
    count = tirx.const(math.prod(map_size), FLOAT32)
    mean = te.compute(written, lambda *at: (sums[at] / count).astype(dtype), "mean")
    return te.create_prim_func([x, mean]).without_attr("global_symbol")
