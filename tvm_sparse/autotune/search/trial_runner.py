"""Budget, clock, history, measuring: what strategies share."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tvm_sparse.autotune.options import MIN_TRIALS_GENERATED, TuneOptions
from tvm_sparse.autotune.search.evolutionary_search import SharedModel
from tvm_sparse.autotune.search.trial_history import Proposal, Trials, key_of_proposal
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import library
from tvm_sparse.errors import BuildError
from tvm_sparse.logs.ranking import fastest
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import Candidate, Outcome
from tvm_sparse.measure.safe_replay import SafeReplay
from tvm_sparse.scheduling.space import Decisions, GeneratedSpace, Space
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import target_json


class TrialRunner:
    """What the strategies of a layer's search share: the trials so far, the measurer, the budget; see `tune_layer`."""

    def __init__(
        self,
        measurer: Measurer,
        weight: np.ndarray,
        options: TuneOptions,
        known: Iterable[TuningRecord],
        starts: Sequence[TuningRecord] = (),
    ):
        self.measurer, self.options, self.starts = measurer, options, starts
        self.spec, self.target = measurer.spec, measurer.target
        self.weight, self.pattern = weight, SparsityPattern.of(weight, measurer.spec.groups)
        self.fingerprint = fingerprint_of(self.target)
        if self.target.kind.name == "cuda" and (cudnn := library.version()):
            self.fingerprint["cudnn"] = cudnn
        self.baseline: TuningRecord | None = None
        self.model, self.folded_model = SharedModel(options.seed), SharedModel(options.seed, own=True)
        # What ended the search before its trials were made: its seconds, or its patience.
        self.is_out_of_time = self.is_exhausted = False
        self.start_clock()
        self.given = list(known)
        self.known = Trials(self.trials_of(self.spec, self.pattern), options.seed)

    def trials_of(self, spec: ConvSpec, pattern: SparsityPattern) -> list[TuningRecord]:
        """Given records that are trials of a convolution here."""
        return [record for record in self.given if record.is_trial_of(spec, pattern, self.fingerprint)]

    def settle(self, spaces: list[Space]) -> None:
        """Drop known trials that these spaces cannot repeat, and learn at once those that a search will not meet.

        A tvm-sparse with other schedules made those that cannot be repeated.
        """
        found = {each.name: each for each in spaces}
        with SafeReplay() as replay:

            def is_stale(record: TuningRecord) -> bool:
                if record.schedule not in found:
                    return record.is_dense
                try:
                    replay.scheduled(found[record.schedule], self.spec, self.pattern, self.target, record.chosen)
                except BuildError:
                    return True
                return False

            self.known.forget(is_stale)
        searched = {each.name for each in spaces if self.searches(each)}
        self.known.give_up(lambda name: name not in searched)

    def searches(self, each: Space) -> bool:
        """Whether a space is searched.

        A generated one has no defaults and needs a batch to show anything, so of few trials it gets none, unless it is
        asked for by name.
        """
        is_named = each.schedule in (self.options.schedules or ())
        return is_named or not isinstance(each, GeneratedSpace) or self.options.trials >= MIN_TRIALS_GENERATED

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
        return self.folded_model if each.has_features else self.model

    def left(self) -> int:
        """Trials that may still be made."""
        return self.options.trials - len(self.known)

    def choose_baseline(self) -> None:
        """Make the fastest dense kernel in float32 the one that sparse candidates are timed in turns with.

        The fastest of each of a library's spaces, TF32's among them, is timed in the same runs.
        """
        dense = [record for record in self.known.records if record.is_dense]
        right = [record for record in dense if record.status == "ok"]
        usable = [record for record in right if not record.is_tf32]
        if not usable:
            cause = dense[0].cause if dense else "no dense schedule serves it"
            raise BuildError(f"convolution {self.spec.key}", f"no dense kernel to compare with: {cause}")
        self.baseline = fastest(usable)
        names = {record.schedule for record in right if record.family.is_library} - {self.baseline.schedule}
        others = [fastest(record for record in right if record.schedule == name) for name in sorted(names)]
        candidates = [Candidate(record.schedule, record.chosen) for record in (self.baseline, *others)]
        self.measurer.set_baseline(candidates[0], candidates[1:])

    def measure(self, proposals: Sequence[Proposal]) -> Iterator[TuningRecord]:
        """Measure proposals, none of which is known, each once."""
        distinct = {key_of_proposal(*proposal): proposal for proposal in proposals}
        candidates = [Candidate(space.name, decisions) for space, decisions in distinct.values()]
        outcomes = self.measurer.measure(candidates)
        for candidate, outcome in zip(candidates, outcomes, strict=True):
            record = self._record(candidate, outcome)
            self.known.add(record)
            yield record

    def cost_us(self, record: TuningRecord) -> float:
        """Time of a trial that a search is to minimise; infinite for one that failed.

        Beside the baseline it is the ratio to it, as a time: what slows the machine down slows both.
        """
        beside = self.baseline
        if beside is None or record.dense_time_us is None or record.baseline != beside.schedule:
            return record.time_us
        return record.time_us / record.dense_time_us * beside.time_us

    def time_us(self, space: Space, decisions: Decisions | None) -> float | None:
        """`cost_us` of a candidate; None where it failed or was not measured."""
        record = self.known.lookup(key_of_proposal(space, decisions))
        return self.cost_us(record) if record is not None and record.status == "ok" else None

    def _record(self, candidate: Candidate, outcome: Outcome) -> TuningRecord:
        chosen = candidate.decisions
        return TuningRecord(
            spec=self.spec,
            pattern=self.pattern,
            schedule=candidate.schedule,
            decisions=chosen if isinstance(chosen, dict) else {},
            trace=chosen if isinstance(chosen, list) else None,
            status=outcome.status,
            cause=outcome.cause,
            times_us=outcome.times_us,
            dense_times_us=outcome.dense_times_us,
            cold_times_us=outcome.cold_times_us,
            dense_cold_times_us=outcome.dense_cold_times_us,
            unconverted_times_us=outcome.unconverted_times_us,
            unconverted_cold_times_us=outcome.unconverted_cold_times_us,
            library_times_us=outcome.library_times_us,
            library_cold_times_us=outcome.library_cold_times_us,
            baseline=self.baseline.schedule if self.baseline and outcome.dense_times_us else "",
            error=outcome.error if outcome.error is not None and math.isfinite(outcome.error) else None,
            target=target_json(self.target),
            fingerprint=self.fingerprint,
            seed=self.options.seed,
        )
