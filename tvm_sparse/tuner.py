"""Tune one layer: search its schedule spaces, yield a record per trial.

Dense kernels come first; the best becomes the rival that every sparse candidate is timed in turns with. Then the sparse
spaces are searched, guided or at random (`phase`). Nothing is written here: the caller appends each record to its log
as it comes, and hands the log's records back as `known` to continue an interrupted run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from tvm.target import Target

from tvm_sparse import environment, space
from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.measure import Candidate, MeasureOptions, Measurer, Outcome
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.phase import GuidedPhase, Phase, Proposal, RandomPhase
from tvm_sparse.records import TuningRecord
from tvm_sparse.sample import MIN_TRIALS, Sample, SamplePhase
from tvm_sparse.schedules.base import Space
from tvm_sparse.search import SharedModel
from tvm_sparse.trials import Key, Trials, key_of_trace
from tvm_sparse.vetting import Vetting

# One dense trial for this many trials, and how many at least: the most promising dense spaces come first.
TRIALS_PER_DENSE_TRIAL, MIN_DENSE_TRIALS = 8, 3
# Fewer trials than this are all spent on hand-made schedules.
MIN_TRIALS_GENERATED = 32
Search = Literal["guided", "random"]


@dataclass(frozen=True)
class TuneOptions:
    """How to tune a layer.

    `trials` candidates in all, known ones included, `batch` at a time (None: 8, and on a GPU as many as are built at
    once); no batch is begun after `seconds` (None: no limit), not counting the time in which an interrupted run's
    trials are met again; `schedules` limits the search to schedules of these names (the dense rival is always
    measured).

    `search` says how sparse candidates are chosen. "guided" starts from the schedules' own decisions, estimated fastest
    where there is an estimate, and goes on with MetaSchedule's evolutionary search and its XGBoost model. "random"
    draws valid candidates, all spaces equally likely, with neither starts nor model. It is not for tuning: it is the
    baseline that shows, at equal trials, what guiding is worth. The dense rival is searched for alike in both. A record
    does not say which search made it, and known records count for both: give each a log of its own.

    A guided search of a layer that takes a GPU's compilers long spends most trials on a sample of it, see `sample`.

    Raises
    ------
    UsageError
        `seconds` is not above 0, or `search` is neither of the two.
    """

    trials: int = 64
    seed: int = 0
    batch: int | None = None
    seconds: float | None = None
    schedules: tuple[str, ...] | None = None
    search: Search = "guided"
    measure: MeasureOptions = field(default_factory=MeasureOptions)

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError("seconds", "is no time limit", self.seconds, "a number above 0, or None for no limit")
        if self.search not in get_args(Search):
            raise UsageError("search", "is unknown", self.search, ", ".join(get_args(Search)))


def tune_layer(
    spec: ConvSpec,
    weight: np.ndarray,
    target: Target,
    options: TuneOptions | None = None,
    known: Iterable[TuningRecord] = (),
    out_of_time: Callable[[], None] = lambda: None,
    start: TuningRecord | None = None,
) -> Iterator[TuningRecord]:
    """Search for the fastest kernel of a convolution with constant `weight` (K, C / groups, R, S), float32.

    Yields a record as soon as its trial ends, failed ones too. `known` records of the same weight, target and TVM count
    towards the budget and are not measured again. `out_of_time` is called at the end where `options.seconds`, and not
    the trials, ended the search. A guided search first tries the decisions of `start`, a record of another weight.

    Raises
    ------
    BuildError
        No dense kernel could be built, so there is nothing to compare with; the sentence holds the first cause.
    """
    options = options or TuneOptions()
    with Measurer(spec, weight, target, options.measure) as measurer:
        tuner = LayerTuner(measurer, weight, options, known, start)
        yield from tuner.run()
        if tuner.is_out_of_time:
            out_of_time()


class LayerTuner:
    """What the phases of a layer's search share: the trials so far, the measurer, the budget; see `tune_layer`."""

    def __init__(
        self,
        measurer: Measurer,
        weight: np.ndarray,
        options: TuneOptions,
        known: Iterable[TuningRecord],
        start: TuningRecord | None,
    ):
        self.measurer, self.options, self.start = measurer, options, start
        self.spec, self.target = measurer.spec, measurer.target
        self.weight, self.pattern = weight, SparsityPattern.of(weight)
        self.fingerprint = environment.fingerprint(self.target)
        self.rival: TuningRecord | None = None
        self.model, self.folded_model = SharedModel(options.seed), SharedModel(options.seed, own=True)
        self.is_out_of_time = False
        self.start_clock()
        self.given = list(known)
        self.known = Trials(self._trials_of(self.spec, self.pattern), options.seed)

    def _trials_of(self, spec: ConvSpec, pattern: SparsityPattern) -> list[TuningRecord]:
        """Given records that are trials of a convolution here."""
        return [record for record in self.given if record.is_trial_of(spec, pattern, self.fingerprint)]

    def run(self) -> Iterator[TuningRecord]:
        """Dense first, then the sparse spaces."""
        names = space.names(self.target)
        wanted = self.options.schedules or tuple(names)
        dense = self._spaces([name for name in names if name.startswith("dense")])
        sparse = self._spaces([name for name in names if name in wanted and not name.startswith("dense")])
        self._settle([*dense, *sparse])
        sample = Sample.of(self.spec, self.weight, self.target) if self.options.search == "guided" else None
        sampled = self._trials_of(sample.spec, sample.pattern) if sample is not None else []
        if self.known.count + len(sampled) >= self.options.trials:
            return
        share = max(min(len(dense), MIN_DENSE_TRIALS), self.options.trials // TRIALS_PER_DENSE_TRIAL)
        tried = sum(1 for schedule, _ in self.known if schedule.startswith("dense"))
        yield from GuidedPhase(self, dense, min(share - tried, self._left())).run()
        if self._left() <= 0 or self.is_out_of_time:
            return
        self._choose_rival()
        phase: Phase
        if self.options.search == "random":
            phase = RandomPhase(self, sparse, self._left())
        elif sample is not None and self._left() >= MIN_TRIALS:
            phase = SamplePhase(self, sample, sparse, self._left())
        else:
            phase = GuidedPhase(self, sparse, self._left())
        yield from phase.run()

    def search(self, spaces: list[Space]) -> Iterator[TuningRecord]:
        """A guided search over these spaces alone, without a rival."""
        self._settle(spaces)
        yield from GuidedPhase(self, spaces, self._left()).run()

    def of_sample(self, measurer: Measurer, sample: Sample, trials: int) -> LayerTuner:
        """The tuner of a sample of this layer, in half of its time."""
        seconds = self.options.seconds / 2 if self.options.seconds is not None else None
        options = replace(self.options, trials=trials, seconds=seconds)
        return LayerTuner(measurer, sample.weight, options, self.given, None)

    def _settle(self, spaces: list[Space]) -> None:
        """Keep the known trials that a search of these spaces can use, and learn at once those it will not meet."""
        self._forget_stale(spaces)
        self.known.give_up(lambda name: name not in {each.name for each in spaces if self.searches(each)})

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

    def start_clock(self) -> None:
        """Give the search all of its seconds from now on."""
        self.deadline = math.inf if self.options.seconds is None else time.monotonic() + self.options.seconds

    def has_time(self) -> bool:
        """Whether another batch may be begun; asked only where there is one to begin."""
        self.is_out_of_time = time.monotonic() >= self.deadline
        return not self.is_out_of_time

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

    def measure(self, proposals: Sequence[Proposal]) -> Iterator[TuningRecord]:
        """Measure the proposals that are not known yet; yields only what is new."""
        fresh: dict[Key, Candidate] = {}
        for each, trace in proposals:
            key = key_of_trace(each, trace)
            if not self.known.meet(key):
                fresh[key] = Candidate(each.name, trace)
        outcomes = self.measurer.measure(list(fresh.values()))
        for (key, candidate), outcome in zip(fresh.items(), outcomes, strict=True):
            self.known[key] = self._record(candidate, outcome)
            yield self.known[key]

    def time_us(self, each: Space, trace: Any) -> float | None:
        """Time of a trace; None where it failed or was not measured."""
        record = self.known.get(key_of_trace(each, trace))
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
