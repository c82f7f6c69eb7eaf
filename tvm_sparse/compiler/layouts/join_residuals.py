"""Compute a 1x1 layer whose output another 1x1 layer adds together with that: as one, of both inputs' channels.

The first block of a stage of ResNet adds what a 1x1 layer makes of its input to its last layer's output. What that
layer writes, and the other reads again, is more than the channels that are copied side by side instead.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Expr, Var

from tvm_sparse.compiler.layouts.keep_nhwc import call_in_nhwc
from tvm_sparse.conv.storage import stored
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.frontend.passes.relax_graph import Graph, new_var, rebuild
from tvm_sparse.scheduling.cudnn_calls import convolution_call, in_layout
from tvm_sparse.scheduling.kernel import opaque


def join_residuals(module: tvm.IRModule) -> tvm.IRModule:
    """`module`, after `keep_nhwc`, with such pairs of cuDNN's calls in NHWC as one where that moves fewer bytes."""
    builder, graph = relax.BlockBuilder(module), Graph.of(module)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in graph.definitions.items():
        found = _call(module, value)
        added = found[1].get("residual") if found is not None else None
        other = _call(module, graph.definitions[added]) if added in graph.definitions else None
        if found is None or other is None or graph.users[added] != [var] or added in graph.returned:
            continue
        if _is_joined(found[0], other[0]):
            name = f"{value.args[0].name_hint}_joined"
            edits[added], edits[var] = [], _bindings(builder, name, var, (found, other))
    return rebuild(builder.get(), edits)


_Call = tuple[Plan, dict[str, Expr]]


def _call(module: tvm.IRModule, value: Expr | None) -> _Call | None:
    """The plan of a 1x1 layer that cuDNN computes from and to NHWC, and the arrays that it reads."""
    found = call_in_nhwc(module, value)
    if found is None or not found[0].is_fused:
        return None
    spec = found[0].spec
    return found if (spec.r, spec.s, spec.padding, spec.groups) == (1, 1, (0, 0, 0, 0), 1) else None


def _is_joined(plan: Plan, first: Plan) -> bool:
    """Whether the layer `first` may be computed with that of `plan`, which adds its output, and is worth it."""
    is_sum = not (first.spec.residual or first.spec.relu)
    return is_sum and plan.spec.k > plan.spec.c + first.spec.c


def _bindings(builder: relax.BlockBuilder, name: str, result: Var, calls: Sequence[_Call]) -> list[tuple[Var, Expr]]:
    (plan, _), (first, _) = calls
    size, channels = plan.spec.output_shape[2:], plan.spec.c + first.spec.c
    spec = replace(plan.spec, c=channels, h=size[0], w=size[1], stride=(1, 1), residual=False, bias=True)

    def new(channels: int) -> Var:
        shape = in_layout(replace(spec, c=channels).input_shape, "nhwc")
        return new_var(builder.get(), result, f"{name}_x{len(bindings)}", shape, spec.dtype)

    bindings, read = list[tuple[Var, Expr]](), list[Expr]()
    for each, arrays in calls:
        own, x = each.spec, arrays["x"]
        if own.stride != (1, 1):
            sliced = relax.op.strided_slice(x, [1, 2], [0, 0], [own.h, own.w], own.stride)
            x = new(own.c)
            bindings.append((x, sliced))
        read.append(x)
    both = new(spec.c)
    weights, biases = ([arrays[key].value.numpy() for _, arrays in calls] for key in ("weight", "bias"))
    bias = stored(np.sum([each.astype(np.float32) for each in biases], axis=0), spec.dtype)
    kernel = builder.add_func(opaque(convolution_call(replace(plan.unsuggested, spec=spec)), name), name)
    constants = (relax.const(np.concatenate(weights, axis=3)), relax.const(bias))
    call = relax.call_tir(kernel, relax.Tuple([both, *constants]), result.ty)
    return [*bindings, (both, relax.op.concat(read, axis=3)), (result, call)]
