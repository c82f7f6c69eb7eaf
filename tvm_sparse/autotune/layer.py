"""Tune one layer: search its schedule spaces, yield a record per trial.

Dense kernels come first, a library's before those that are compiled. The best in float32 becomes the baseline that
every sparse candidate is timed in turns with, and the library's best in TF32 is timed along. Then the sparse spaces
are searched (`strategies`). Nothing is written here: the caller appends each record to its log
as it comes, and hands the log's records back as `known` to continue an interrupted run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from tvm.target import Target

from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.search.patience import GAIN
from tvm_sparse.autotune.search.proxy_layer import MIN_TRIALS, Sample, SamplePhase
from tvm_sparse.autotune.search.strategies import GuidedPhase, LibraryPhase
from tvm_sparse.autotune.search.trial_runner import TrialRunner
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.worker_pool import WorkerPool
from tvm_sparse.schedules.lookup import family_of, schedule_names, spaces_of

# One dense trial for this many trials, and how many at least: the most promising dense spaces come first.
TRIALS_PER_DENSE_TRIAL, MIN_DENSE_TRIALS = 8, 3


def tune_layer(
    spec: ConvSpec,
    weight: np.ndarray,
    target: Target,
    options: TuneOptions | None = None,
    known: Iterable[TuningRecord] = (),
    out_of_time: Callable[[], None] = lambda: None,
    starts: Sequence[TuningRecord] = (),
    worker_pool: WorkerPool | None = None,
    ended_early: Callable[[str], None] = lambda _sentence: None,
) -> Iterator[TuningRecord]:
    """Search for the fastest kernel of a convolution with constant `weight` (K, C / groups, R, S), float32.

    Yields a record as soon as its trial ends, failed ones too. `known` records of the same weight, target and TVM count
    towards the budget and are not measured again. A search that ends before its trials are made says so at its end:
    `out_of_time` is called where `options.seconds` ended it, and `ended_early`, with a sentence, where
    `options.patience` did. A search first tries the decisions of `starts` where they fit, records that are no
    trials of this weight here: of another weight or batch, or timed with warm code only. Workers are those of
    `worker_pool`, where one is given. BuildError where no dense kernel could be built, so there is nothing to compare
    with; the sentence holds the first cause.
    """
    options = options or TuneOptions()
    with Measurer(spec, weight, target, options.measure, worker_pool) as measurer:
        runner = TrialRunner(measurer, weight, options, known, starts)
        yield from _search(runner)
        if runner.is_out_of_time:
            out_of_time()
        elif runner.is_exhausted:
            ended_early(
                f"the last {runner.options.patience} candidates gained less than {GAIN:.0%}, so no more are tried; "
                "--full, in Python TuneOptions(patience=None), tries all"
            )


def _search(runner: TrialRunner) -> Iterator[TuningRecord]:
    """Dense first, then the sparse spaces."""
    options, names = runner.options, schedule_names(runner.target)
    before = [name for name in schedule_names(runner.target, every=True) if family_of(name).computes_before]
    wanted = [name for name in names if family_of(name).is_dense] + [*(options.schedules or names + before)]
    spaces, _ = spaces_of(runner.spec, runner.pattern, runner.target, wanted)
    dense = [each for each in spaces if family_of(each.schedule).is_dense]
    joint = [each for each in spaces if family_of(each.schedule).computes_before]
    sparse = [each for each in spaces if each not in (*dense, *joint)]
    runner.settle(spaces)
    called = [each for each in dense if family_of(each.schedule).is_library]
    yield from LibraryPhase(runner, [*called, *joint]).run()
    compiled = [each for each in dense if not family_of(each.schedule).is_library]
    sample = Sample.of(runner.spec, runner.weight, runner.target)
    sampled = runner.trials_of(sample.spec, sample.pattern) if sample is not None else []
    if runner.known.count + len(sampled) >= options.trials:
        return
    share = options.dense_trials
    if share is None:
        share = max(min(len(compiled), MIN_DENSE_TRIALS), options.trials // TRIALS_PER_DENSE_TRIAL)
    tried = sum(record.is_dense and not record.family.is_library for record in runner.known.records)
    yield from GuidedPhase(runner, compiled, min(share - tried, runner.left())).run()
    if runner.left() <= 0 or runner.is_out_of_time:
        return
    runner.choose_baseline()
    folded = [each for each in sparse if each.fold]
    if sample is not None and folded and runner.left() >= MIN_TRIALS:
        # What holds its weights as data builds at once, however many these are; it gets half of the trials.
        others = [each for each in sparse if not each.fold]
        yield from GuidedPhase(runner, others, runner.left() // 2).run()
        sparse = folded
        if runner.left() >= MIN_TRIALS and not runner.is_out_of_time:
            yield from SamplePhase(runner, sample, sparse, runner.left()).run()
            return
    yield from GuidedPhase(runner, sparse, runner.left()).run()
