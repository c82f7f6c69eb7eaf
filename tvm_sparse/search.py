"""MetaSchedule's evolutionary search with its XGBoost cost model, over one schedule space.

`SpaceSearch` proposes traces and is told their times; building, running and remembering are the caller's. Nothing here
measures or writes.
"""

from __future__ import annotations

import logging
import random
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import s_tir
from tvm.ir import IRModule
from tvm.ir.utils import derived_object
from tvm.runtime import tensor
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tvm_sparse.schedules.base import Space
from tvm_sparse.space import replay, trace_to_json

# The time given to MetaSchedule for a candidate that failed, as its own database does.
FAILED_S = 1e10
# Small: a space here has hundreds to thousands of points, and a trace takes milliseconds to replay.
POPULATION = 48
# How many times the default's estimated time makes a candidate hopeless. Of the three best kernels of each of 20
# convolutions none was estimated at more than 1.6 times the lowest estimate.
HOPELESS = 2.0

# Why a candidate is rejected before it costs a trial, or "".
Reason = Callable[[s_tir.Schedule], str]


class SharedModel:
    """A cost model of several spaces of one layer: what one space teaches helps to rank another's candidates.

    With `own`, the spaces' own features describe a candidate, else TVM's features of the loop nest.
    """

    def __init__(self, seed: int, own: bool = False):
        self.extractor = OwnFeatures() if own else ms.feature_extractor.PerStoreFeature()
        config = ms.cost_model.xgb_model.XGBConfig(seed=seed, nthread=1)
        self.model = ms.cost_model.XGBModel(extractor=self.extractor, config=config, num_warmup_samples=16)
        self._state = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Let NumPy's global generator continue this model's own sequence: until it is trained, the model guesses."""
        outside = np.random.get_state()
        np.random.set_state(self._state)
        try:
            yield
        finally:
            self._state = np.random.get_state()
            np.random.set_state(outside)

    def know(self, space: Space) -> None:
        """Prepare for candidates of `space`."""
        if space.features is not None:
            self.extractor.of[space.name] = space.features


class SpaceSearch:
    """Evolutionary search over one space.

    Parameters
    ----------
    space, target
        What is searched.
    model
        The cost model, shared by the layer's spaces.
    seed
        Of all random choices; the same seed and the same times give the same proposals.
    trials, batch
        The most candidates that will be proposed, and how many at a time.
    """

    def __init__(self, space: Space, target: Target, model: SharedModel, seed: int, trials: int, batch: int):
        self.space, self.model, self.target = space, model, target
        self._batch: list[ms.MeasureCandidate] = []
        # Why candidates were rejected before they cost a trial, and how many.
        self.refused: Counter[str] = Counter()
        model.know(space)
        self._context = tune_context(space, target, _strategy(), seed, self.refused, hopeless(space))
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._context.mod)
        self._designs = self._context.generate_design_space()
        self._context.pre_tuning(trials, batch, self._designs, self._database, model.model)

    def starts(self) -> list[Any]:
        """Traces of the schedule's own decisions, its default first, as JSON; a generated space has none."""
        if self.space.apply is None:
            return []
        schedules = [self._designs[0], *map(self.space.scheduled, self.space.others)]
        return [trace_to_json(schedule.trace) for schedule in schedules]

    def propose(self) -> list[Any] | None:
        """The next traces to measure, as JSON; None when the space is exhausted."""
        with self.model.seeded():
            candidates = self._context.generate_measure_candidates()
        if not candidates:
            return None
        self._batch = list(candidates)
        return [trace_to_json(candidate.sch.trace) for candidate in self._batch]

    def tell(self, times_us: Sequence[float | None]) -> None:
        """Times of the last proposal, in its order; None for a candidate that failed."""
        results = [_result(time_us) for time_us in times_us]
        self._learn(self._batch, results)
        self._context.notify_runner_results(self._batch, results)
        self._batch = []

    def remember(self, traces: Sequence[Any], times_us: Sequence[float | None]) -> None:
        """Learn from candidates measured outside `propose`: the default, or an earlier run's."""
        candidates, kept = [], []
        for trace, time_us in zip(traces, times_us, strict=True):
            schedule = replay(self.space, trace)
            args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
            candidates.append(ms.MeasureCandidate(schedule, args))
            kept.append(_result(time_us))
        if candidates:
            self._learn(candidates, kept)

    def _learn(self, candidates: list, results: list) -> None:
        self.model.model.update(self._context, candidates, results)
        for candidate, result in zip(candidates, results, strict=True):
            seconds = result.run_secs or [FAILED_S]
            record = ms.database.TuningRecord(
                candidate.sch.trace, self._workload, seconds, self.target, candidate.args_info
            )
            self._database.commit_tuning_record(record)


def hopeless(space: Space) -> list[Reason]:
    """Why a candidate is no use to a search that looks for the fastest; nothing where there is no estimate."""
    estimate, default_us = space.estimate, space.estimate_us
    if estimate is None or default_us is None:
        return []

    def reason(sch: s_tir.Schedule) -> str:
        if estimate(sch) <= HOPELESS * default_us:
            return ""
        return f"estimated at more than {HOPELESS:g} times the time of the space's own decisions"

    return [reason]


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


def _result(time_us: float | None) -> ms.runner.RunnerResult:
    if time_us is None:
        return ms.runner.RunnerResult(run_secs=None, error_msg="failed")
    return ms.runner.RunnerResult(run_secs=[time_us * 1e-6], error_msg=None)


def _generator(
    space: Space, seed: int, refused: Counter[str], reasons: Sequence[Reason]
) -> ms.space_generator.SpaceGenerator:
    postprocs = [Refuse(reason, refused) for reason in (space.refuse, *reasons) if reason is not None]
    if space.generated is not None:
        return space.generated.generator(postprocs)
    mutators = {ms.mutator.MutateTileSize(): 0.4, MutateCategorical(seed): 0.6}
    return ms.space_generator.ScheduleFn(space.apply, sch_rules=[], postprocs=postprocs, mutator_probs=mutators)


def _strategy() -> ms.search_strategy.EvolutionarySearch:
    return ms.search_strategy.EvolutionarySearch(
        population_size=POPULATION,
        init_measured_ratio=0.4,
        init_min_unmeasured=POPULATION // 3,
        max_fail_count=20,
        genetic_num_iters=3,
        genetic_mutate_prob=0.85,
        genetic_max_fail_count=10,
        eps_greedy=0.15,
    )


@derived_object
class OwnFeatures(ms.feature_extractor.PyFeatureExtractor):
    """One row of features a candidate, from the function that its space, the context's task, has for them."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, Callable[[s_tir.Schedule], Sequence[float]]] = {}

    def extract_from(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> list:
        """A (1, features) array for each candidate."""
        features = self.of[context.task_name]
        rows = (np.array([features(candidate.sch)], np.float32) for candidate in candidates)
        return [tensor(row) for row in rows]


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

    def clone(self) -> MutateCategorical:
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

    def clone(self) -> Refuse:
        """The same rule, counted together."""
        return Refuse(self.reason, self.refused)


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


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger("tvm_sparse.search")
    logger.setLevel(logging.WARNING)
    return logger
