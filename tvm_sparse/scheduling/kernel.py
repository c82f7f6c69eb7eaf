"""A space, decisions and a weight as a scheduled kernel."""

from dataclasses import dataclass, field

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, Schedule

from tvm_sparse.conv.byte_form import ByteForm
from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.conv.nchwc import NCHW, Layouts
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.scheduling.annotations import WEIGHT_ATTRIBUTE, WEIGHT_CALL
from tvm_sparse.scheduling.space import Decisions, GeneratedSpace, Space, WrittenSpace


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


def opaque(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """`func` as the function `name` of a module, scheduled, and opaque for Relax's fusion."""
    return func.with_attr({"tirx.is_scheduled": True, "op_pattern": 8, "global_symbol": name})


@dataclass(frozen=True)
class Kernel:
    """A scheduled function and the arrays made from its weight.

    `func` takes x (N, C, H, W), `constants`, [bias (K,)], [residual (N, K, OH, OW)] and writes y (N, K, OH, OW). A
    folded kernel has no constants: its weight is an attribute that `lowering` folds into the code. One that `expands`
    takes the input of the layer before its own, which it computes too. x, residual and y lie in memory as `layouts`
    says; of one with a `form` they are bytes, and the bias is among the constants where that has stages. One with an
    `interleaving` writes its outputs as these interleave, and one with `volumes` reads maps of these.
    What `before` has are kernels like it of other channels, each of which adds to what the one before it has written,
    and it to what the last one has.
    """

    func: tirx.PrimFunc
    constants: tuple[np.ndarray, ...] = ()
    expands: bool = field(default=False, kw_only=True)
    layouts: Layouts = field(default=NCHW, kw_only=True)
    form: ByteForm | None = field(default=None, kw_only=True)
    interleaving: Interleaving | None = field(default=None, kw_only=True)
    volumes: Volumes | None = field(default=None, kw_only=True)
    before: "tuple[Kernel, ...]" = field(default=(), kw_only=True)

    @property
    def all(self) -> "tuple[Kernel, ...]":
        """Those `before` and itself."""
        return (*self.before, self)


def apply_decisions(space: Space, weight: np.ndarray, decisions: Decisions | None = None) -> Kernel:
    """Schedule `space` by `decisions`, or by default, and bind `weight` to it.

    BuildError where the decisions do not fit the space. UsageError where there are none, and the space has no default.
    """
    return kernel_of(space, space.scheduled(decisions), weight)


def kernel_of(space: Space, schedule: Schedule, weight: np.ndarray) -> Kernel:
    """The kernel that `schedule`, one of `space`, makes of `weight`."""
    if isinstance(space, GeneratedSpace):
        space.finish(schedule)
    if isinstance(space, WrittenSpace):
        decisions = space.decisions_of(schedule)
        func, constants = space.written(decisions), space.packed(weight, decisions)
    else:
        func, constants = space.finished(schedule.mod["main"]), space.constants(weight)
    if space.fold:
        func = bind_weight(func, 1, weight)
    # Scheduled: DLight leaves it alone. Opaque (kind 8): Relax does not fuse it with its neighbours.
    func = func.with_attr("tirx.is_scheduled", True).with_attr("op_pattern", 8)
    return Kernel(func, constants)
