"""Tiny convolutions whose generated code is kept: one for each schedule and each structure of its kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.codegen.kernel_stages import stages
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import GeneratedSpace

# In full, so that the code is the same on every machine.
TARGETS = {
    "cpu": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1},
    "cuda": {"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "x86-64-v3"}},
}
# Of a CPU kernel the folded code is kept: LLVM's IR is thousands of lines, and changes with LLVM.
STAGES = {"cpu": "folded", "cuda": "cuda"}


@dataclass(frozen=True)
class Case:
    """A space by its name, a convolution, and decisions in the space's order; None are the default ones."""

    space: str
    spec: ConvSpec
    decisions: dict[str, int | str] | None = None
    nnz: int = 5
    # Filters that share their zeros.
    length: int = 1

    @property
    def kind(self) -> str:
        """The key of its target."""
        return self.space.partition(":")[0].rpartition("_")[2]

    @property
    def head(self) -> str:
        """What the code is of, in two comments."""
        mark = {"cpu": "#", "cuda": "//"}[self.kind]
        decisions = ", ".join(f"{name} {value}" for name, value in (self.decisions or {}).items())
        return f"{mark} {self.space} of {self.spec.key} for {TARGETS[self.kind]}\n{mark} {decisions or 'by default'}\n"

    @cached_property
    def code(self) -> str:
        """The stage that is kept, all of it."""
        target, weight = Target(TARGETS[self.kind]), np.zeros(self.spec.weight_shape, np.float32)[:: self.length]
        # Whole numbers 2, -3, 4, ... at equal distances.
        places = np.linspace(1, weight.size - 2, self.nnz).astype(int)
        weight.flat[places] = [(-1) ** i * (i + 2) for i in range(self.nnz)]
        weight = weight.repeat(self.length, axis=0)
        space = find_space(self.space, self.spec, SparsityPattern.of(weight), target)
        decisions = _as_generated(space) if isinstance(space, GeneratedSpace) else self.decisions
        return stages(space, apply_decisions(space, weight, decisions), target)[STAGES[self.kind]]()


def _as_generated(space: GeneratedSpace) -> Any:
    """The trace of the textbook convolution as MetaSchedule's rules may leave it."""
    sch = Schedule(space.func, debug_mask="none")
    conv = sch.get_sblock("conv")
    n, k, y, x, c, r, s = sch.get_loops(conv)
    k_outer, k_inner = sch.split(k, sch.sample_perfect_tile(k, n=2, decision=[1, 2]))
    sch.reorder(n, k_outer, y, c, r, s, k_inner, x)
    sch.parallel(y)
    sch.vectorize(x)
    sch.decompose_reduction(conv, c)
    return space.decisions_of(sch)


_KERNEL = re.compile(r'^extern "C" __global__ [^\n]*\{$', re.MULTILINE)


def kernels(source: str) -> str:
    """The definitions of a CUDA source's kernels."""
    return source[_KERNEL.search(source).start() :].rstrip("\n") + "\n"


def device_functions(source: str) -> list[str]:
    """Our functions and macros in a CUDA source, and TVM's for asynchronous copies."""
    own = source[: source.index('extern "C" __global__')].partition("#define ushort unsigned short\n#endif\n")[2]
    return re.findall(r"^(?:__forceinline__ .*?^\}$|#define .*?$)", own, re.MULTILINE | re.DOTALL)


def _tile(filters: int, rows: int, order: str = "straight", launch: str = "at_exit") -> dict[str, int | str]:
    tile = {"filters": filters, "rows": rows, "images": 1, "channels": 1}
    return {**tile, "pipeline_stages": 3, "order": order, "blocks_per_sm": 1, "dependent_launch": launch}


PADDED = {"padding": (1, 1, 1, 1)}
NPQ = {
    "filters": 2,
    "channels": 1,
    "pipeline_stages": 3,
    "order": "straight",
    "blocks_per_sm": 1,
    "dependent_launch": "last_k_tile",
}
SPLIT_K = {"filters": 2, "channels": 1, "pipeline_stages": 3, "blocks_per_sm": 1, "dependent_launch": "at_exit"}
# Name of the file -> what is in it.
CASES = {
    "folded_cpu-block": Case(
        "folded_cpu:rows1x10-block", ConvSpec(1, 2, 6, 8, 2, 3, 3, **PADDED, bias=True, relu=True)
    ),
    "folded_cpu-root": Case("folded_cpu:rows3x10-root", ConvSpec(2, 2, 6, 8, 2, 3, 3, **PADDED)),
    "folded_cpu-direct": Case("folded_cpu:rows2x8-direct", ConvSpec(1, 4, 2, 8, 4, 1, 1, residual=True)),
    "generated_cpu": Case("generated_cpu", ConvSpec(1, 2, 4, 8, 2, 3, 3, **PADDED)),
    "csr_cpu": Case("csr_cpu", ConvSpec(1, 2, 6, 8, 2, 3, 3, **PADDED)),
    "vector_cpu": Case("vector_cpu", ConvSpec(1, 2, 6, 8, 4, 3, 3, **PADDED), length=2),
    "linear_cpu-single": Case("linear_cpu:single", ConvSpec(1, 8, 1, 1, 4, 1, 1, bias=True, relu=True)),
    "linear_cpu-images": Case("linear_cpu:images8x2", ConvSpec(16, 8, 1, 1, 4, 1, 1, bias=True, relu=True)),
    "dense_cpu-rows": Case("dense_cpu:rows1x10-block", ConvSpec(1, 2, 6, 8, 2, 3, 3, **PADDED)),
    "dense_cpu-filters": Case("dense_cpu:filters", ConvSpec(1, 1, 3, 5, 12, 2, 2, bias=True)),
    "dense_cpu-channels": Case(
        "dense_cpu:channels4", ConvSpec(1, 4, 2, 8, 4, 1, 2, padding=(1, 0, 0, 0), stride=(1, 2), groups=4)
    ),
    "winograd_cpu": Case("winograd_cpu:filters", ConvSpec(1, 1, 2, 8, 12, 3, 3, **PADDED)),
    "folded_cuda-straight": Case(
        "folded_cuda:multistage-4x8-pixels1", ConvSpec(1, 3, 4, 8, 2, 3, 3, **PADDED, bias=True, relu=True), _tile(2, 4)
    ),
    "folded_cuda-rotated": Case(
        "folded_cuda:multistage-4x8-pixels1",
        ConvSpec(1, 3, 4, 8, 1, 3, 3, **PADDED),
        _tile(1, 4, "rotated", "last_k_tile"),
    ),
    "folded_cuda-dependent_launch": Case(
        "folded_cuda:multistage-4x8-pixels1", ConvSpec(1, 2, 4, 8, 2, 3, 3, **PADDED), _tile(1, 4, launch="at_once")
    ),
    "folded_cuda-columns_first": Case(
        "folded_cuda:multistage-16x16-pixels1-across", ConvSpec(1, 1, 16, 32, 1, 3, 3, **PADDED), _tile(1, 8)
    ),
    "folded_cuda-side_by_side": Case(
        "folded_cuda:multistage-4x16-pixels1x2", ConvSpec(1, 1, 4, 16, 1, 3, 3, **PADDED), _tile(1, 4)
    ),
    "folded_cuda-half": Case(
        "folded_cuda:multistage-4x16-pixels1",
        ConvSpec(1, 2, 4, 16, 1, 3, 3, **PADDED, bias=True, dtype="float16"),
        _tile(1, 4),
    ),
    "folded_cuda-npq": Case("folded_cuda:npq32", ConvSpec(2, 1, 6, 6, 2, 3, 3, **PADDED), NPQ),
    "folded_cuda-warp_rows": Case("folded_cuda:warp-rows32", ConvSpec(8, 2, 1, 36, 2, 1, 1, residual=True), NPQ, nnz=3),
    "folded_cuda-split_k": Case("folded_cuda:split2-npq32", ConvSpec(1, 4, 4, 8, 2, 1, 1, bias=True), SPLIT_K),
    "folded_cuda-single_stage": Case("folded_cuda:single-8x4-pixels1", ConvSpec(1, 2, 64, 64, 1, 61, 61)),
    "csr_cuda": Case("csr_cuda:pixels2", ConvSpec(1, 2, 4, 8, 2, 3, 3, **PADDED)),
    "linear_cuda": Case("linear_cuda", ConvSpec(2, 8, 1, 1, 4, 1, 1, bias=True, relu=True), {"filters": 2}),
    "dense_cuda": Case("dense_cuda:async-4x8-pixels1", ConvSpec(1, 2, 4, 8, 2, 3, 3, **PADDED)),
}
