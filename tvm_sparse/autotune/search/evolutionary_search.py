"""MetaSchedule's evolutionary search with its XGBoost cost model, over one schedule space.

`SpaceSearch` proposes decisions and is told their times; building and running are the caller's. Nothing here measures
or writes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.runtime import tensor
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_sparse.autotune.search.metaschedule_context import Reason, tune_context
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.scheduling.space import Decisions, Space

# The time given to MetaSchedule for a candidate that failed, as its own database does.
FAILED_S = 1e10
# Small: a space here has hundreds to thousands of points, and scheduling one takes milliseconds.
POPULATION = 48
# How many times the default's estimated time makes a candidate hopeless. Of the three best kernels of each of 20
# convolutions none was estimated at more than 1.6 times the lowest estimate.
HOPELESS = 2.0


@derived_object
class _LazyModel(ms.cost_model.XGBModel._cls):
    """XGBoost trained when it is asked for a prediction, not each time that it is told times, which is more often.

    Its predictions are the same: training starts from scratch.
    """

    _untrained: tuple[list[np.ndarray], np.ndarray] | None = None

    def _train(self, xs: list[np.ndarray], ys: np.ndarray) -> None:
        self._untrained = xs, ys

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """As TVM's, which guesses before it has enough samples."""
        if self._untrained is not None and self.data_size >= self.num_warmup_samples:
            super()._train(*self._untrained)
            self._untrained = None
        return super().predict(context, candidates)

    def _validate(self, xs: list[np.ndarray], ys: np.ndarray) -> list[tuple[str, float]]:
        """Nothing: it would be for TVM's debug log alone."""
        return []


class SharedModel:
    """A cost model of several spaces of one layer: what one space teaches helps to rank another's candidates.

    With `own`, the spaces' own features describe a candidate, else TVM's features of the loop nest.
    """

    def __init__(self, seed: int, own: bool = False):
        self.extractor = OwnFeatures() if own else ms.feature_extractor.PerStoreFeature()
        config = ms.cost_model.xgb_model.XGBConfig(seed=seed, nthread=1)
        self.model = _LazyModel(extractor=self.extractor, config=config, num_warmup_samples=16)
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


class SpaceSearch:
    """Evolutionary search over one space.

    * `space`, `target`: what is searched.
    * `model`: the cost model, shared by the layer's spaces.
    * `seed`: of all random choices; the same seed and the same times give the same proposals.
    * `trials`, `batch`: the most candidates that will be proposed, and how many at a time.
    """

    def __init__(self, space: Space, target: Target, model: SharedModel, seed: int, trials: int, batch: int):
        self.space, self.model, self.target = space, model, target
        self._batch: list[ms.MeasureCandidate] = []
        # Why candidates were rejected before they cost a trial, and how many.
        self.refused: Counter[str] = Counter()
        if space.has_features:
            model.extractor.of[space.name] = space.features
        self._context = tune_context(space, target, _strategy(), seed, self.refused, hopeless(space))
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._context.mod)
        self._designs = self._context.generate_design_space()
        self._context.pre_tuning(trials, batch, self._designs, self._database, model.model)

    def propose(self) -> list[Decisions] | None:
        """The next decisions to measure; None when the space is exhausted."""
        with self.model.seeded():
            self._batch = list(self._context.generate_measure_candidates() or [])
        if not self._batch:
            return None
        return [self.space.decisions_of(candidate.sch) for candidate in self._batch]

    def tell(self, times_us: Sequence[float | None]) -> None:
        """Times of the last proposal, in its order; None for a candidate that failed."""
        results = [_result(time_us) for time_us in times_us]
        self._learn(self._batch, results)
        self._context.notify_runner_results(self._batch, results)
        self._batch = []

    def remember(self, records: Iterable[TuningRecord], cost_us: Callable[[TuningRecord], float]) -> None:
        """Learn from those of the space that were measured outside `propose`: the default, or an earlier run's."""
        candidates, results = [], []
        for record in records:
            if record.schedule == self.space.name:
                candidates.append(_candidate(self.space.scheduled(record.chosen)))
                results.append(_result(cost_us(record) if record.status == "ok" else None))
        if candidates:
            self._learn(candidates, results)

    def _learn(self, candidates: list, results: list) -> None:
        self.model.model.update(self._context, candidates, results)
        for candidate, result in zip(candidates, results, strict=True):
            seconds = result.run_secs or [FAILED_S]
            record = ms.database.TuningRecord(
                candidate.sch.trace, self._workload, seconds, self.target, candidate.args_info
            )
            self._database.commit_tuning_record(record)


def _candidate(schedule: s_tir.Schedule) -> ms.MeasureCandidate:
    args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return ms.MeasureCandidate(schedule, args)


def hopeless(space: Space) -> list[Reason]:
    """Why a candidate is no use to a search that looks for the fastest; nothing where there is no estimate."""
    default_us = space.estimate_us
    if default_us is None:
        return []

    def reason(sch: s_tir.Schedule) -> str:
        if (space.estimate(sch) or 0) <= HOPELESS * default_us:
            return ""
        return f"estimated at more than {HOPELESS:g} times the time of the space's own decisions"

    return [reason]


def _result(time_us: float | None) -> ms.runner.RunnerResult:
    if time_us is None:
        return ms.runner.RunnerResult(run_secs=None, error_msg="failed")
    return ms.runner.RunnerResult(run_secs=[time_us * 1e-6], error_msg=None)


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
