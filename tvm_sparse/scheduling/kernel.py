"""Space + trace + weight -> Kernel (bind_weight, apply_trace)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock

from tvm_sparse.errors import UsageError
from tvm_sparse.scheduling.annotations import WEIGHT_ATTRIBUTE, WEIGHT_CALL
from tvm_sparse.scheduling.space import Space
from tvm_sparse.scheduling.trace import replay


def bind_weight(func: tirx.PrimFunc, parameter: int, weight: np.ndarray) -> tirx.PrimFunc:
    """Remove the weight argument at position `parameter` and attach `weight` as an attribute instead.

    The result is an ordinary scheduled function without a weight argument, which Relax can call.
    """
    argument = func.params[parameter]

    def load(node: TensorLoad) -> tirx.Expr:
        if node.source.same_as(argument):
            return tirx.call_pure_extern(argument.ty.dtype, WEIGHT_CALL, *node.indices)
        return node

    def block(node: SBlock) -> SBlock:
        reads = [read for read in node.reads if not read.source.same_as(argument)]
        if len(reads) == len(node.reads):
            return node
        rest = (node.writes, node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers)
        return SBlock(node.iter_vars, reads, *rest, node.annotations)

    body = tvm_ffi.structural_map(func.body, [(TensorLoad, load), (SBlock, block)], order="post")
    parameters = [p for i, p in enumerate(func.params) if i != parameter]
    bound = tirx.PrimFunc(parameters, body, func.ret_type, func.attrs)
    return bound.with_attr(WEIGHT_ATTRIBUTE, tvm.runtime.tensor(np.ascontiguousarray(weight)))


@dataclass(frozen=True)
class Kernel:
    """A scheduled function and the arrays made from its weight.

    `func` takes x (N, C, H, W), `constants`, [bias (K,)], [residual (N, K, OH, OW)] and writes y (N, K, OH, OW). A
    folded kernel has no constants: its weight is an attribute that `lowering` folds into the code.
    """

    func: tirx.PrimFunc
    constants: tuple[np.ndarray, ...] = ()


def apply_trace(space: Space, weight: np.ndarray, trace: Any = None) -> Kernel:
    """Schedule `space` by `trace` and bind `weight` to it; see `kernel`."""
    if trace is not None:
        schedule = replay(space, trace)
    elif space.apply is not None:
        schedule = space.scheduled(space.apply)
    else:
        raise UsageError(f"schedule {space.name}", "has no default decisions", hint="give a trace from a tuning log")
    if space.generated is not None:
        space.generated.finish(schedule)
    func = schedule.mod["main"]
    if space.fold:
        func = bind_weight(func, 1, weight)
    # Scheduled: DLight leaves it alone. Opaque (kind 8): Relax does not fuse it with its neighbours.
    func = func.with_attr("tirx.is_scheduled", True).with_attr("op_pattern", 8)
    return Kernel(func, space.constants(weight))
