"""The space of a layer whose weights are all zero, which is its bias. Nothing is decided."""

from dataclasses import replace
from functools import partial

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d import WEIGHT, prim_func
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import NCHW, Layouts, blocked_arguments, output
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.blocked_space import BlockedSpace
from tvm_sparse.scheduling.cpu.nchwc_cut import fills_blocks
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, NotApplicable
from tvm_sparse.target.cpu_info import CpuInfo

# Threads of a GPU's block.
THREADS = 256


def conv2d_bias(spec: ConvSpec, layouts: Layouts = NCHW) -> tirx.PrimFunc:
    """The stage ``out``, which reads neither the input, though that is an argument, nor a weight, which is none."""
    if layouts.y:
        spec = replace(spec, k=layouts.filled(spec.k))
    arguments = blocked_arguments(spec, layouts)
    del arguments[WEIGHT]
    return prim_func(arguments, output(spec, layouts, arguments, lambda *_: tirx.const(0.0, FLOAT32)))


def require_zeros(pattern: SparsityPattern) -> None:
    """Raise NotApplicable where a weight is not zero."""
    if pattern.nnz:
        raise NotApplicable("not all of its weights are zero")


class _BiasSpace(HandMadeSpace):
    """Of tensors as (N, C, H, W)."""

    def __init__(self, name: str, spec: ConvSpec):
        self.spec = spec
        super().__init__(name, "", partial(conv2d_bias, spec, NCHW), fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """None."""
        return ()


class BiasSpace(_BiasSpace):
    """On a CPU."""

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        _schedule_on_cpu(sch, self.spec)


class BlockedBiasSpace(BlockedSpace):
    """On a CPU, of tensors in blocks of channels: of any input, and a residual that lies as the output."""

    def _unscheduled(self) -> tirx.PrimFunc:
        return conv2d_bias(self.spec, self.layouts)

    @staticmethod
    def writes(spec: ConvSpec, cpu: CpuInfo) -> bool:
        return cpu.has_block_kernels and spec.dtype == FLOAT32 and fills_blocks(spec.k, cpu)

    @staticmethod
    def reads(_spec: ConvSpec, _cpu: CpuInfo) -> bool:
        return True

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """None."""
        return ()

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        _schedule_on_cpu(sch, self.spec)


def _schedule_on_cpu(sch: Schedule, spec: ConvSpec) -> None:
    n, k, y, x, *lane = sch.get_loops(sch.get_sblock("out"))
    if spec.out_h * spec.out_w == 1:
        sch.parallel(n)
        return
    sch.parallel(sch.fuse(n, k))
    # LLVM makes vectors of the loop over a map's pixels.
    sch.fuse(y, x)
    for each in lane:
        sch.vectorize(each)


class CudaBiasSpace(_BiasSpace):
    """On a GPU: a thread for each value."""

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        block, thread = sch.split(sch.fuse(*sch.get_loops(sch.get_sblock("out"))), [None, THREADS])
        sch.bind(block, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
