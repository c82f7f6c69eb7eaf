"""MetaSchedule's context for one space: its generator, a mutator of choices, and what rejects candidates."""

import logging
import random
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tvm import s_tir
from tvm.ir import IRModule
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tvm_sparse.scheduling.space import GeneratedSpace, HandMadeSpace, Space

# Why a candidate is rejected before it costs a trial, or "".
Reason = Callable[[s_tir.Schedule], str]


def tune_context(
    space: Space,
    target: Target,
    strategy: ms.search_strategy.SearchStrategy,
    seed: int,
    refused: Counter[str],
    reasons: Sequence[Reason] = (),
) -> ms.TuneContext:
    """MetaSchedule's context of one space for a search strategy.

    Candidates are rejected for the space's reasons and `reasons`, which are counted in `refused`.
    """
    with _without_tensor_intrinsics():
        return ms.TuneContext(
            IRModule({"main": space.func}),
            target=target,
            space_generator=_generator(space, seed, refused, reasons),
            search_strategy=strategy,
            task_name=space.name,
            rand_state=seed,
            num_threads=1,
            logger=_quiet_logger(),
        )


@contextmanager
def _without_tensor_intrinsics() -> Iterator[None]:
    """Keep `TuneContext` from importing all tensor intrinsics: 10 to 50 s for what these spaces never use."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


def _generator(
    space: Space, seed: int, refused: Counter[str], reasons: Sequence[Reason]
) -> ms.space_generator.SpaceGenerator:
    postprocs = [Refuse(reason, refused) for reason in (space.obstacle_of, *reasons)]
    if isinstance(space, GeneratedSpace):
        return space.generator(postprocs)
    assert isinstance(space, HandMadeSpace)
    mutators = {ms.mutator.MutateTileSize(): 0.4, MutateCategorical(seed): 0.6}
    return ms.space_generator.ScheduleFn(space.sample, sch_rules=[], postprocs=postprocs, mutator_probs=mutators)


@derived_object
class MutateCategorical(ms.mutator.PyMutator):
    """Replace one categorical decision by another; TVM has mutators for tile sizes and unrolling only."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed
        self.random = random.Random(seed)

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Nothing of the context is needed."""

    def apply(self, trace: Trace, *_: object) -> Trace | None:
        """A copy of `trace` with one decision changed, or None where there is none to change."""
        choices = [
            i
            for i in trace.insts
            if i.kind.name == "SampleCategorical" and i in trace.decisions and len(i.attrs[0]) > 1
        ]
        if not choices:
            return None
        instruction = self.random.choice(choices)
        current = int(trace.decisions[instruction])
        others = [index for index in range(len(instruction.attrs[0])) if index != current]
        return trace.with_decision(instruction, self.random.choice(others), remove_postproc=True)

    def clone(self) -> "MutateCategorical":
        """A mutator with the same seed."""
        return MutateCategorical(self.seed)


@derived_object
class Refuse(ms.postproc.PyPostproc):
    """Rejects a candidate that its space says is not worth a trial, before it costs one, and counts the reasons."""

    def __init__(self, reason: Reason, refused: Counter[str]):
        super().__init__()
        self.reason, self.refused = reason, refused

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Nothing of the context is needed."""

    def apply(self, sch: s_tir.Schedule) -> bool:
        """Whether the candidate stays."""
        reason = self.reason(sch)
        if reason:
            self.refused[reason] += 1
        return not reason

    def clone(self) -> "Refuse":
        """The same rule, counted together."""
        return Refuse(self.reason, self.refused)


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger("tvm_sparse.search")
    logger.setLevel(logging.WARNING)
    return logger
