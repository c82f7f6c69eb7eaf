"""The textbook convolution under MetaSchedule's own generated space for GPUs, folded afterwards (Ansor's way).

No schedule is written here: MetaSchedule's rules tile every loop over blocks, virtual threads, threads and registers,
compute padding and epilogue in place, and choose what is copied to shared memory, and how. They would copy the weight,
too: it is taken out again, as it becomes code. Explicit unrolling is left out of the rules: it would break the nest
apart before it is folded.
"""

import random
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from tvm import ir
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from tvm_sparse.conv.conv2d import conv2d
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import FOLD
from tvm_sparse.scheduling.code_size import why_not_folded
from tvm_sparse.scheduling.cuda.generated_tiles import AXES, LEVELS, MAX_MULTIPLY_ADDS, WARP, TileRules
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.metaschedule import without_tensor_intrinsics
from tvm_sparse.scheduling.space import Decisions, GeneratedSpace, NotApplicable, Space, sampled

NAME = "generated_cuda"
# Floats that one instruction may copy to shared memory, offered to the search.
COPIED = [1, 2, 3, 4]
# Draws in a row that TVM's own checks refuse, after which none is expected to pass.
MAX_UNFIT = 100


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The generated space for `spec`.

    Raises
    ------
    NotApplicable
        The weight has more than `MAX_MULTIPLY_ADDS` non-zeros, or a filter has too few outputs for a warp.
    """
    if reason := why_not_folded(pattern.nnz, MAX_MULTIPLY_ADDS):
        raise NotApplicable(reason)
    outputs = spec.n * spec.out_h * spec.out_w
    if outputs < WARP:
        raise NotApplicable(f"{outputs} outputs of a filter, at least {WARP}: the threads of a warp share its code")
    return [TextbookSpace(spec, pattern.nnz, target)]


class TextbookSpace(GeneratedSpace):
    """MetaSchedule's space of the textbook convolution for a weight of `nnz` non-zeros."""

    has_draws = True

    def __init__(self, spec: ConvSpec, nnz: int, target: Target):
        super().__init__(NAME, "", partial(conv2d, spec))
        self.target, self.rules = target, TileRules(nnz, spec.k // spec.groups)
        self.extents = dict(zip(AXES, spec.output_shape, strict=True))

    def generator(self, postprocs: list) -> ms.space_generator.SpaceGenerator:
        reuse = ms.schedule_rule.ReuseType
        rules = [
            ms.schedule_rule.MultiLevelTiling(
                structure="SSSRRSRS",
                tile_binds=["blockIdx.x", "vthread.x", "threadIdx.x"],
                max_innermost_factor=64,
                vector_load_lens=COPIED,
                reuse_read=reuse(req="must", levels=[4], scope="shared"),
                reuse_write=reuse(req="must", levels=[3], scope="local"),
            ),
            ms.schedule_rule.AutoInline(
                into_producer=True,
                into_consumer=True,
                inline_const_tensor=True,
                disallow_if_then_else=False,
                require_injective=False,
                require_ordered=False,
            ),
        ]
        # What is refused is refused first: it is read from the sampled tiles, and the others take milliseconds.
        posts = [
            *postprocs,
            ms.postproc.DisallowDynamicLoop(),
            ms.postproc.RewriteCooperativeFetch(),
            ms.postproc.RewriteUnboundBlock(),
            ms.postproc.RewriteReductionBlock(),
            ReadWeightInPlace(),
            ms.postproc.VerifyGPUCode(),
        ]
        return ms.space_generator.PostOrderApply(
            sch_rules=rules, postprocs=posts, mutator_probs={ms.mutator.MutateTileSize(): 1.0}
        )

    def obstacle_of(self, sch: Schedule) -> str:
        """What of its tiles is out of bounds."""
        tiles = [each for each in sampled(sch) if isinstance(each, list) and len(each) == len(LEVELS)]
        return self.rules.obstacle_of(dict(zip(AXES, tiles, strict=True)))

    def draws(self, seed: int) -> Iterator[Decisions]:
        """Traces of MetaSchedule's rules with random tiles that are not refused; the others' decisions are its own."""
        generator, choose, unfit = self.generator([]), random.Random(seed), 0
        with without_tensor_intrinsics():
            module = ir.IRModule({"main": self.func})
            context = ms.TuneContext(module, target=self.target, space_generator=generator, rand_state=seed)
        designs = context.generate_design_space()
        for tiles in self.rules.draws(self.extents, choose):
            sch = Schedule(self.func, seed=choose.randrange(1, 2**30), debug_mask="none")
            _replay(choose.choice(designs), sch, list(tiles.values()))
            # A search takes up the trace here, to go on with other tiles.
            sch.enter_postproc()
            if all(each.apply(sch) for each in generator.postprocs):
                unfit = 0
                yield self.decisions_of(sch)
            elif (unfit := unfit + 1) == MAX_UNFIT:
                return

    def finish(self, sch: Schedule) -> None:
        """Mark what follows the copies for folding, and let each accumulator be a register."""
        update = sch.get_sblock("conv_update")
        (copies,) = (each for each in sch.get_producers(update) if sch.get(each).name_hint.endswith("_shared"))
        sch.annotate(_not_around(sch, update, copies)[0], FOLD, 1)
        (stores,) = sch.get_consumers(update)
        initial = sch.get_sblock("conv_init")
        for loop in chain(_not_around(sch, initial, update), _not_around(sch, stores, update)):
            sch.unroll(loop)


@derived_object
class ReadWeightInPlace(ms.postproc.PyPostproc):
    """Takes out the copy of the weight that MultiLevelTiling makes of everything that a block reads."""

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Nothing of the context is needed."""

    def apply(self, sch: Schedule) -> bool:
        """Always true: the copy is there, and can be taken out."""
        sch.compute_inline(sch.get_sblock("weight_shared"))
        return True

    def clone(self) -> "ReadWeightInPlace":
        """It has no state."""
        return ReadWeightInPlace()


def _replay(design: Schedule, sch: Schedule, tiles: list[list[int]]) -> None:
    """Do with `sch` what was done with `design`, the spatial axes tiled as given, all else sampled anew."""
    left = iter(tiles)

    def decide(instruction: Any, _inputs: Any, attributes: Any, _decision: Any) -> Any:
        is_spatial = instruction.kind.name == "SamplePerfectTile" and int(attributes[0]) == len(LEVELS)
        return next(left) if is_spatial else None

    design.trace.apply_to_schedule(sch, remove_postproc=True, decision_provider=decide)


def _not_around(sch: Schedule, block: SBlockRV, other: SBlockRV) -> list[LoopRV]:
    """The loops around `block` that are not around `other`."""
    shared = {sch.get(loop).loop_var for loop in sch.get_loops(other)}
    return [loop for loop in sch.get_loops(block) if sch.get(loop).loop_var not in shared]


FAMILY = KernelFamily(NAME, "cuda", spaces, code=Code.FOLDED, is_generated=True)
