"""The textbook convolution under MetaSchedule's own generated space, folded afterwards (Ansor's way).

No schedule is written here: MetaSchedule's rules tile every loop over several levels and choose what is vectorised and
parallel. Afterwards the reduction's loops, with the pixels and filters inside them, are marked for folding. Explicit
unrolling and inlined padding are left out of the rules: both would break the nest apart before it is folded.
"""

import math
from functools import partial

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import LoopRV
from tvm.target import Target

from tvm_sparse.conv.conv2d import conv2d
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import FOLD
from tvm_sparse.scheduling.code_size import why_not_folded
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import GeneratedSpace, NotApplicable, Space

NAME = "generated_cpu"
# Multiply-adds a kernel may hold, and so non-zeros. Tiles are sampled without regard for code size; LLVM's time grows
# faster than the length of a block, and beyond this a build takes over 10 s. Where the stride along rows is not 1 each
# lane of a vector is loaded by itself, and counts: 7,373 non-zeros in vectors of 7 lanes built for 16 s, and in five
# other tiles of that convolution for minutes.
MAX_MULTIPLY_ADDS = 12_000
# Accumulators that may live at once: with many more than there are registers LLVM takes minutes and the code spills.
MAX_ACCUMULATORS = 32
# Floats in a vector, at least: LLVM tries to join narrower ones into wider, in time that grows with the square of the
# block.
MIN_LANES = 4


def spaces(spec: ConvSpec, pattern: SparsityPattern, _target: Target) -> list[Space]:
    """The generated space for `spec`.

    NotApplicable where the weight has more non-zeros than `MAX_MULTIPLY_ADDS` allows.
    """
    most = MAX_MULTIPLY_ADDS // (MIN_LANES if spec.stride[1] > 1 else 1)
    if reason := why_not_folded(pattern.nnz, most):
        raise NotApplicable(reason)
    return [TextbookSpace(spec, pattern.nnz)]


class TextbookSpace(GeneratedSpace):
    """MetaSchedule's space of the textbook convolution for a weight of `nnz` non-zeros."""

    def __init__(self, spec: ConvSpec, nnz: int):
        super().__init__(NAME, "", partial(conv2d, spec))
        self.nnz, self.is_strided = nnz, spec.stride[1] > 1

    def generator(self, postprocs: list) -> ms.space_generator.SpaceGenerator:
        rules = [
            ms.schedule_rule.MultiLevelTiling(
                structure="SSRSRS",
                max_innermost_factor=64,
                reuse_write=ms.schedule_rule.ReuseType(req="may", levels=[1, 2], scope="global"),
            ),
            ms.schedule_rule.ParallelizeVectorizeUnroll(
                max_jobs_per_core=16, max_vectorize_extent=64, unroll_max_steps=[], unroll_explicit=False
            ),
        ]
        posts = [
            ms.postproc.DisallowDynamicLoop(),
            ms.postproc.RewriteParallelVectorizeUnroll(),
            ms.postproc.RewriteReductionBlock(),
            *postprocs,
        ]
        return ms.space_generator.PostOrderApply(
            sch_rules=rules, postprocs=posts, mutator_probs={ms.mutator.MutateTileSize(): 1.0}
        )

    def obstacle_of(self, sch: Schedule) -> str:
        """Which of multiply-adds, accumulators and vectors is out of its bounds."""
        loops = [sch.get(loop) for loop in _reduction(sch)]
        serial = [loop for loop in loops if loop.kind != tirx.ForKind.VECTORIZED]
        pixels = math.prod(int(loop.extent) for loop in serial if loop.loop_var.name[0] in "nyx")
        filters = math.prod(int(loop.extent) for loop in serial if loop.loop_var.name[0] == "k")
        lanes = math.prod(int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.VECTORIZED)
        multiply_adds = self.nnz * pixels * (lanes if self.is_strided else 1)
        if multiply_adds > MAX_MULTIPLY_ADDS:
            return f"{multiply_adds} multiply-adds, at most {MAX_MULTIPLY_ADDS}"
        if pixels * filters > MAX_ACCUMULATORS:
            return f"{pixels * filters} accumulators, at most {MAX_ACCUMULATORS}"
        return "" if lanes >= MIN_LANES else f"vectors of {lanes}, at least {MIN_LANES}"

    def finish(self, sch: Schedule) -> None:
        """Mark the reduction for folding."""
        sch.annotate(_reduction(sch)[0], FOLD, 1)


def _reduction(sch: Schedule) -> list[LoopRV]:
    """The loops of the reduction: those of the update that its initialisation does not share."""
    shared = {sch.get(loop).loop_var for loop in sch.get_loops(sch.get_sblock("conv_init"))}
    return [loop for loop in sch.get_loops(sch.get_sblock("conv_update")) if sch.get(loop).loop_var not in shared]


FAMILY = KernelFamily(NAME, "llvm", spaces, code=Code.FOLDED, is_generated=True)
