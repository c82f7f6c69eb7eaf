"""Tune one layer: search its schedule spaces, yield a record per trial.

The order of trials: dense kernels first, whose best becomes the rival that every sparse candidate is timed in turns
with; then every sparse space's default decisions; then rounds of MetaSchedule's evolutionary search, given in turn to
the spaces with the best times so far. Nothing is written here: the caller appends each record to its log as it comes,
and hands the log's records back as `known` to continue an interrupted run.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse import environment, space
from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.measure import Candidate, MeasureOptions, Measurer, Outcome
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.records import FINGERPRINT_KEYS, TuningRecord, decisions_key
from tvm_sparse.schedules.base import Space
from tvm_sparse.search import SharedModel, SpaceSearch
from tvm_sparse.trials import Key, Trials
from tvm_sparse.vetting import Vetting

# One dense trial for this many trials, and how many at least: the most promising dense spaces come first.
TRIALS_PER_DENSE_TRIAL, MIN_DENSE_TRIALS = 8, 3
# Fewer trials than this are all spent on hand-made schedules.
MIN_TRIALS_GENERATED = 32


@dataclass(frozen=True)
class TuneOptions:
    """How to tune a layer.

    `trials` candidates in all, known ones included, `batch` at a time (None: 8, and on a GPU as many as are built at
    once); no batch is begun after `seconds`; `schedules` limits the search to schedules of these names (the dense rival
    is always measured).
    """

    trials: int = 64
    seed: int = 0
    batch: int | None = None
    seconds: float | None = None
    schedules: tuple[str, ...] | None = None
    measure: MeasureOptions = field(default_factory=MeasureOptions)


def tune_layer(
    spec: ConvSpec,
    weight: np.ndarray,
    target: Target,
    options: TuneOptions | None = None,
    known: Iterable[TuningRecord] = (),
) -> Iterator[TuningRecord]:
    """Search for the fastest kernel of a convolution with constant `weight` (K, C / groups, R, S), float32.

    Yields a record as soon as its trial ends, failed ones too. `known` records of the same weight, target and TVM count
    towards the budget and are not measured again.

    Raises
    ------
    BuildError
        No dense kernel could be built, so there is nothing to compare with; the sentence holds the first cause.
    """
    options = options or TuneOptions()
    with Measurer(spec, weight, target, options.measure) as measurer:
        yield from _LayerTuner(measurer, weight, options, known).run()


def trial_key(each: Space, trace: Any) -> Key:
    """The candidate that a trace of a space is."""
    return each.name, decisions_key(space.decisions(trace))


class _LayerTuner:
    def __init__(self, measurer: Measurer, weight: np.ndarray, options: TuneOptions, known: Iterable[TuningRecord]):
        self.measurer, self.options = measurer, options
        self.spec, self.target = measurer.spec, measurer.target
        self.pattern = SparsityPattern.of(weight)
        self.fingerprint = environment.fingerprint(self.target)
        self.rival: TuningRecord | None = None
        self.model, self.folded_model = SharedModel(options.seed), SharedModel(options.seed, own=True)
        self.deadline = math.inf if options.seconds is None else time.monotonic() + options.seconds
        self.known = Trials(filter(self._fits, known), options.seed)

    def _fits(self, record: TuningRecord) -> bool:
        """Whether `record` is a trial of this search. A dense kernel's time does not depend on the weight's values."""
        same_weight = record.is_dense or record.pattern.value_digest == self.pattern.value_digest
        same_machine = all(record.fingerprint[name] == self.fingerprint[name] for name in FINGERPRINT_KEYS)
        return record.spec == self.spec and same_weight and same_machine

    def run(self) -> Iterator[TuningRecord]:
        """Dense first, then the sparse spaces."""
        names = space.names(self.target)
        wanted = self.options.schedules or tuple(names)
        dense = self._spaces([name for name in names if name.startswith("dense")])
        sparse = self._spaces([name for name in names if name in wanted and not name.startswith("dense")])
        self._forget_stale([*dense, *sparse])
        self.known.give_up(lambda name: name not in {each.name for each in (*dense, *sparse) if self.searches(each)})
        if self.known.count >= self.options.trials:
            return
        share = max(min(len(dense), MIN_DENSE_TRIALS), self.options.trials // TRIALS_PER_DENSE_TRIAL)
        tried = sum(1 for schedule, _ in self.known if schedule.startswith("dense"))
        yield from _Phase(self, dense, min(share - tried, self._left())).run()
        if self._left() <= 0:
            return
        self._choose_rival()
        yield from _Phase(self, sparse, self._left()).run()

    def _forget_stale(self, spaces: list[Space]) -> None:
        """Drop known trials that these spaces cannot repeat: an older tvm-sparse, with other schedules, made them."""
        found = {each.name: each for each in spaces}
        with Vetting() as vetting:
            for trials in (self.known, self.known.pending):
                for key, record in list(trials.items()):
                    try:
                        if record.schedule in found:
                            where = found[record.schedule], self.spec, self.pattern, self.target
                            vetting.check(*where, record.trace)
                        elif record.is_dense:
                            del trials[key]
                    except BuildError:
                        del trials[key]

    def searches(self, each: Space) -> bool:
        """Whether a space is searched: a generated one has no defaults and needs a batch to show anything."""
        return each.generated is None or self.options.trials >= MIN_TRIALS_GENERATED

    @property
    def batch(self) -> int:
        """Candidates proposed at a time."""
        builders = self.options.measure.builders if self.target.kind.name == "cuda" else 0
        return self.options.batch or max(8, builders)

    def model_of(self, each: Space) -> SharedModel:
        """The cost model that ranks a space's candidates."""
        return self.model if each.features is None else self.folded_model

    def _left(self) -> int:
        """Trials that may still be made."""
        return self.options.trials - len(self.known)

    def _spaces(self, schedules: list[str]) -> list[Space]:
        return space.spaces(self.spec, self.pattern, self.target, schedules)[0]

    def _choose_rival(self) -> None:
        """Make the fastest dense kernel the one that sparse candidates are timed in turns with."""
        dense = [record for record in self.known.values() if record.is_dense]
        usable = [record for record in dense if record.status == "ok"]
        if not usable:
            cause = dense[0].cause if dense else "no dense schedule serves it"
            raise BuildError(f"convolution {self.spec.key}", f"no dense kernel to compare with: {cause}")
        self.rival = min(usable, key=lambda record: record.time_us)
        self.measurer.set_rival(Candidate(self.rival.schedule, self.rival.trace))

    def measure(self, spaces: list[Space], traces: list[Any]) -> Iterator[TuningRecord]:
        """Measure the traces that are not known yet; yields only what is new."""
        fresh: dict[tuple[str, str], Candidate] = {}
        for each, trace in zip(spaces, traces, strict=True):
            key = trial_key(each, trace)
            if not self.known.meet(key):
                fresh[key] = Candidate(each.name, trace)
        outcomes = self.measurer.measure(list(fresh.values()))
        for (key, candidate), outcome in zip(fresh.items(), outcomes, strict=True):
            self.known[key] = self._record(candidate, outcome)
            yield self.known[key]

    def time_us(self, each: Space, trace: Any) -> float | None:
        """Time of a trace; None where it failed or was not measured."""
        record = self.known.get(trial_key(each, trace))
        return record.time_us if record is not None and record.status == "ok" else None

    def _record(self, candidate: Candidate, outcome: Outcome) -> TuningRecord:
        return TuningRecord(
            spec=self.spec,
            pattern=self.pattern,
            schedule=candidate.schedule,
            trace=candidate.trace,
            decisions=space.decisions(candidate.trace),
            status=outcome.status,
            cause=outcome.cause,
            times_us=outcome.times_us,
            dense_times_us=outcome.rival_times_us,
            dense_schedule=self.rival.schedule if self.rival and outcome.rival_times_us else "",
            error=outcome.error if outcome.error is not None and math.isfinite(outcome.error) else None,
            target=environment.target_json(self.target),
            fingerprint=self.fingerprint,
            seed=self.options.seed,
        )


class _Phase:
    """The search over some spaces of a layer with a budget of trials."""

    def __init__(self, tuner: _LayerTuner, spaces: list[Space], budget: int):
        self.tuner = tuner
        self.spaces = list(filter(tuner.searches, spaces))
        self.end = len(tuner.known) + budget

    @property
    def left(self) -> int:
        """Trials that may still be made, those of an earlier run that are met again included."""
        return self.end - len(self.tuner.known)

    def run(self) -> Iterator[TuningRecord]:
        """Starts of all spaces, then rounds of search over the best ones."""
        if self.left <= 0 or not self.spaces:
            return
        searches = self._searches()
        starts = [[(search.space, trace) for trace in search.starts()] for search in searches]
        # Defaults of all spaces before second starts of any.
        pairs = [pair for rank in itertools.zip_longest(*starts) for pair in rank if pair is not None]
        yield from self._measure([each for each, _ in pairs], [trace for _, trace in pairs])
        for search in searches:
            self._remember(search)
        turn = 0
        while self.left > 0 and searches and time.monotonic() < self.tuner.deadline:
            ranked = sorted(searches, key=lambda search: self._best_us(search.space))
            # Two turns of three to the best space, one to the next: the second best default may hold the best kernel.
            search = ranked[1 if turn % 3 == 2 and len(ranked) > 1 else 0]
            turn += 1
            traces = search.propose()
            if traces is None:
                searches.remove(search)
                continue
            yield from self._measure([search.space] * len(traces), traces, searches)
            search.tell([self.tuner.time_us(search.space, trace) for trace in traces])

    def _searches(self) -> list[SpaceSearch]:
        tuner = self.tuner
        options = tuner.options
        # A space may be asked for all trials that are left, and proposes known candidates again.
        most = options.trials * 2 + len(tuner.known)
        return [
            SpaceSearch(each, tuner.target, tuner.model_of(each), options.seed + 1 + index, most, tuner.batch)
            for index, each in enumerate(self.spaces)
        ]

    def _measure(
        self, spaces: list[Space], traces: list[Any], searches: Sequence[SpaceSearch] = ()
    ) -> Iterator[TuningRecord]:
        """Measure what is new of as many traces as the budget allows.

        Where an earlier run did not measure one of them, it went another way: its other trials are learnt now.
        """
        known = self.tuner.known
        pairs = list(zip(spaces, traces, strict=True))[: max(self.left, 0)]
        fresh = [(each, trace) for each, trace in pairs if not known.meet(trial_key(each, trace))]
        if fresh:
            lost = known.give_up(lambda name: name in {each.name for each in self.spaces})
            for search in searches:
                search.remember(*self._times(search.space, lost))
        fresh = fresh[: max(self.left, 0)]
        yield from self.tuner.measure([each for each, _ in fresh], [trace for _, trace in fresh])

    def _remember(self, search: SpaceSearch) -> None:
        """Teach the search what is known of its space: its default, just measured, and an earlier run's trials."""
        search.remember(*self._times(search.space, self.tuner.known.values()))

    def _times(self, each: Space, records: Iterable[TuningRecord]) -> tuple[list[Any], list[float | None]]:
        """Traces of those `records` that are of a space, and their times."""
        traces = [record.trace for record in records if record.schedule == each.name]
        return traces, [self.tuner.time_us(each, trace) for trace in traces]

    def _best_us(self, each: Space) -> float:
        """Best time in a space so far; 0 before its first trial, so that every space gets a turn."""
        times = [record.time_us for (name, _), record in self.tuner.known.items() if name == each.name]
        return min(times, default=0.0)
