"""Functions of TVM's that call cuDNN."""

from collections.abc import Sequence
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.cudnn.packed_function import CONVOLUTION, LAYOUT_CHANGE
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.scheduling.cuda.library import staging
from tvm_sparse.scheduling.tir_writing import new_buffer, whole

# Attributes of functions that `convolution_call` and `layout_change_call` made: what they do, as text.
_PLAN, _CHANGE = "tvm_sparse.cudnn_plan", "tvm_sparse.cudnn_layout_change"
_FLOAT_BYTES = 4


def convolution_call(plan: Plan) -> tirx.PrimFunc:
    """One convolution: the arrays of ``plan.arguments`` but ``scratch``, which it makes itself.

    Input, residual and output are (N, H, W, C) where ``plan.layout_of`` says so. Scheduled, where a kernel of ours
    writes the input anew.
    """
    spec, called = plan.spec, plan.after_staging
    shapes = {
        "x": plan.staged.given_shape if plan.staged is not None else in_layout(plan.input_shape, plan.layout_of("x")),
        "weight": in_layout(spec.weight_shape, plan.layout),
        "bias": (spec.k,),
        "residual": in_layout(spec.output_shape, plan.layout_of("residual")),
        "y": in_layout(spec.output_shape, plan.layout_of("y")),
    }
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        names = (*plan.inputs, "y")
        arrays = {name: T.arg(name, T.buffer(shapes[name], spec.dtype, layout=None)) for name in names}
        with T.sblock("root"):
            if plan.staged is not None:
                arrays["x"] = staging.write_staged(arrays["x"], plan.staged)
            # TVM's memory, so that a model plans it with its own.
            arrays["scratch"] = new_buffer("scratch", (tirx.IntImm("int64", called.scratch["end"] // _FLOAT_BYTES),))
            with T.sblock("call"):
                T.reads(*(whole(arrays[name]) for name in plan.inputs))
                T.writes(whole(arrays["y"]))
                T.evaluate(T.call_packed(CONVOLUTION, *(arrays[name] for name in plan.arguments), called.to_text()))
    func = builder.get().with_attr("tirx.noalias", True).with_attr(_PLAN, plan.to_text())
    return staging.schedule_staged(func, plan.staged) if plan.staged is not None else func


def plan_of(func: tirx.PrimFunc) -> Plan | None:
    """The plan of a function that `convolution_call` made, None of another."""
    return Plan.from_text(str(func.attrs[_PLAN])) if _PLAN in func.attrs else None


def without_conversions(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The same convolution between layers like it, whose tensors lie as cuDNN computes; None where it converts none."""
    plan = plan_of(func)
    if plan is None or plan.layout == "nchw" or not plan.converts:
        return None
    return convolution_call(replace(plan, converts=False))


def layout_change_call(change: LayoutChange) -> tirx.PrimFunc:
    """A tensor in another layout: arrays x and y, (N, C, H, W) and (N, H, W, C) or the other way."""
    before = "nchw" if change.to == "nhwc" else "nhwc"
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        x = T.arg("x", T.buffer(in_layout(change.shape, before), change.dtype, layout=None))
        y = T.arg("y", T.buffer(in_layout(change.shape, change.to), change.dtype, layout=None))
        with T.sblock("root"):
            T.reads(whole(x))
            T.writes(whole(y))
            T.evaluate(T.call_packed(LAYOUT_CHANGE, x, y, change.to_text()))
    return builder.get().with_attr({"tirx.noalias": True, _CHANGE: change.to_text()})


def layout_change_of(func: tirx.PrimFunc) -> LayoutChange | None:
    """What a function that `layout_change_call` made changes, None of another."""
    return LayoutChange.from_text(str(func.attrs[_CHANGE])) if _CHANGE in func.attrs else None


def in_layout(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The shape (N, C, H, W) in the order in which it lies in memory."""
    n, c, h, w = shape
    return (n, c, h, w) if layout == "nchw" else (n, h, w, c)
