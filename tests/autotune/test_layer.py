"""The order, budget, seeds and memory of a layer's tuning; measuring is faked but for one test."""

import itertools
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from parameters import sampled

from tvm_sparse.autotune import layer
from tvm_sparse.autotune.layer import tune_layer
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.search import evolutionary_search, trial_runner
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.logs.record import decisions_key
from tvm_sparse.measure.call_row import is_timed_cold
from tvm_sparse.measure.outcome import MeasureOptions, Outcome
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.scheduling.space import HandMadeSpace
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

# Whatever this machine is: how many choices a search has depends on its vectors.
TARGET = resolve_target('{"kind":"llvm","mcpu":"x86-64-v3","num-cores":1,"opt-level":0}')
SPEC = ConvSpec(1, 16, 12, 12, 16, 3, 3, padding=(1, 1, 1, 1))
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.2, 1.5, 0).astype(np.float32)
# All default decisions and a few rounds of search.
TRIALS = 24


class Fake:
    """A measurer whose times follow from the decisions; `failures` maps names of schedules to statuses."""

    def __init__(self, failures):
        self.failures = failures

    def __call__(self, spec, weight, target, options, worker_pool=None):
        self.spec, self.target, self.worker_pool = spec, target, worker_pool
        self.is_timed_cold = is_timed_cold(target.kind.name, np.count_nonzero(weight))
        self.measured, self.baselines, self.others = [], [], []
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def set_baseline(self, candidate, others=()):
        self.baselines.append(candidate)
        self.others = [each.schedule for each in others]

    def measure(self, candidates):
        for candidate in candidates:
            key = candidate.schedule, decisions_key(candidate.decisions)
            self.measured.append(key)
            status = next((s for name, s in self.failures.items() if candidate.schedule.startswith(name)), "ok")
            if status == "ok":
                time_us = 10 + zlib.crc32(repr(key).encode()) % 1000 / 100
                yield self.outcome(time_us)
            else:
                yield Outcome(status, f"{candidate.schedule} is broken")

    def outcome(self, time_us):
        """Of kernels that are timed cold too the fastest are those that are the slowest warm."""
        dense = (50.0,) * 3 if self.baselines else ()
        if not self.is_timed_cold:
            return Outcome("ok", "", (time_us,) * 3, dense, 0.2)
        return Outcome("ok", "", (time_us,) * 3, dense, 0.2, (60 - time_us,) * 3, (90.0,) * 3 if dense else None)


@pytest.fixture
def fake(monkeypatch):
    """Makes tuning use a `Fake` measurer; gives it."""

    def use(**failures):
        measurer = Fake(failures)
        monkeypatch.setattr(layer, "Measurer", measurer)
        return measurer

    return use


@pytest.fixture(scope="module", autouse=True)
def small_populations():
    """Most of the time of a faked trial goes to proposing it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evolutionary_search, "POPULATION", 4)
        yield


@pytest.fixture(scope="module")
def run():
    """A finished tuning: its measurer and its records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "Measurer", measurer := Fake({}))
        return measurer, tune()


@pytest.fixture
def done(run):
    """The records of a finished tuning."""
    return list(run[1])


def tune(trials=TRIALS, seed=0, known=(), weight=WEIGHT, batch=4, **options):
    return list(tune_layer(SPEC, weight, TARGET, TuneOptions(trials=trials, seed=seed, batch=batch, **options), known))


def keys(records):
    return [(record.schedule, decisions_key(record.decisions)) for record in records]


def test_dense_comes_first_and_its_best_is_the_baseline(run):
    measurer, records = run
    dense = [record for record in records if record.is_dense]
    assert dense
    assert records[: len(dense)] == dense
    assert not any(record.dense_times_us for record in dense)
    best = min(dense, key=lambda record: record.time_us)
    assert [(each.schedule, each.decisions) for each in measurer.baselines] == [(best.schedule, best.chosen)]
    for record in records[len(dense) :]:
        assert (record.baseline, record.dense_time_us) == (best.schedule, 50.0)


def test_every_space_is_tried_and_nothing_twice_within_the_budget(run):
    measurer, records = run
    assert len(records) == TRIALS
    assert len(set(measurer.measured)) == len(measurer.measured) == TRIALS
    spaces, _ = spaces_of(SPEC, SparsityPattern.of(WEIGHT), TARGET)
    assert {each.name for each in spaces if isinstance(each, HandMadeSpace)} == {record.schedule for record in records}


def test_of_few_trials_a_generated_space_gets_some_where_it_is_named(fake, done):
    fake()
    assert not any(record.trace for record in done)
    named = tune(trials=12, schedules=("generated_cpu",))
    assert {record.schedule for record in named if not record.is_dense} == {"generated_cpu"}


def test_records_say_what_was_measured(done):
    for record in done:
        assert (record.spec, record.pattern, record.seed) == (SPEC, SparsityPattern.of(WEIGHT), 0)
        assert record.trace is None or not record.decisions
        assert record.fingerprint == fingerprint_of(TARGET)
        assert record.status == "ok"
        assert type(record).from_line(record.to_line()) == record


def test_a_seed_decides_everything_and_seeds_differ(fake, done):
    fake()
    assert keys(tune()) == keys(done)
    assert set(keys(tune(seed=4))) != set(keys(done))


@pytest.mark.parametrize("interrupted_after", sampled([1, 3, 9], [3]))
def test_a_rerun_measures_only_what_is_left(fake, done, interrupted_after):
    measurer = fake()
    known = done[:interrupted_after]
    records = tune(known=known)
    assert measurer.measured == keys(records)
    # What is left, in the order of the run that was not interrupted.
    assert keys(known + records) == keys(done)


def test_a_rerun_with_a_lost_record_keeps_the_budget_and_what_is_known(fake, done):
    """A damaged line in the middle of the log: the search cannot repeat itself, but measures nothing twice."""
    measurer = fake()
    known = done[:5] + done[6:12]
    records = tune(known=known)
    assert len(records) == TRIALS - len(known)
    assert not set(keys(known)) & set(measurer.measured)
    assert len(set(measurer.measured)) == len(records)


@pytest.mark.parametrize("change", [{"batch": 3}, {"schedules": ("csr_cpu",)}], ids=str)
def test_a_rerun_with_other_options_keeps_the_budget_and_what_is_known(fake, done, change):
    measurer = fake()
    records = tune(known=done, trials=TRIALS + 2, **change)
    assert len(records) == 2
    assert not set(keys(done)) & set(measurer.measured)


def test_trials_of_another_seed_are_known_from_the_start(fake, done):
    """So here too an interruption changes nothing."""
    options = {"seed": 9, "schedules": ("csr_cpu",), "trials": TRIALS + 3}
    measurer = fake()
    records = tune(known=done, **options)
    assert len(records) == 3
    assert not set(keys(done)) & set(measurer.measured)
    assert keys(tune(known=[*done, records[0]], **options)) == keys(records[1:])


def test_a_finished_layer_is_left_alone(fake, done):
    measurer = fake()
    assert tune(known=done) == []
    assert measurer.measured == []


def test_dense_trials_serve_every_weight_and_sparse_ones_their_own(fake, done):
    fake()
    records = tune(known=done, weight=WEIGHT * 2)
    assert not any(record.is_dense for record in records)
    assert len(records) == TRIALS - sum(record.is_dense for record in done)


CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')


def tune_cuda(known=(), start=None, trials=7):
    """By default without a trial that a model proposes, which takes longest."""
    options = TuneOptions(trials=trials, batch=4, schedules=("csr_cuda",))
    return list(tune_layer(SPEC, WEIGHT, CUDA, options, known, starts=[start] if start else []))


def warm_only(record):
    return replace(record, cold_times_us=None, dense_cold_times_us=None)


def test_a_search_goes_by_times_with_cold_code(fake):
    measurer = fake()
    records = tune_cuda(trials=10)
    assert all(record.is_cold and record.time_us == 60 - record.warm_time_us for record in records)
    best = max((record for record in records if record.is_dense), key=lambda record: record.warm_time_us)
    assert [each.decisions for each in measurer.baselines] == [best.chosen]
    assert {record.dense_time_us for record in records if not record.is_dense} == {90.0}


def test_what_was_timed_with_warm_code_only_is_timed_again(fake):
    measurer = fake()
    records = tune_cuda()
    again = tune_cuda([warm_only(record) for record in records], start=warm_only(records[-1]))
    assert len(again) == len(records)
    sparse = [record for record in again if not record.is_dense]
    assert keys(sparse)[0] == keys(records)[-1]
    measurer.measured.clear()
    assert tune_cuda(again) == []


def test_a_kernel_of_more_layers_is_tried_once_behind_a_library(fake):
    """By itself, where the layer may end a bottleneck; what else is named leaves it out."""
    measurer = fake()
    last = ConvSpec(64, 64, 56, 56, 256, 1, 1, bias=True, relu=True, residual=True, dtype="float16")
    weight = normal_weight(last, 0.1, 0)

    def search(spec, known=(), **options):
        options = TuneOptions(trials=3, batch=2, dense_trials=1, **options)
        return list(tune_layer(spec, weight, CUDA, options, known))

    records = search(last)
    of_more = [each for each in records if each.family.computes_before]
    assert [each.decisions for each in of_more] == [{}] and not of_more[0].baseline
    assert all(each.family.is_library for each in records[: records.index(of_more[0])])
    measurer.measured.clear()
    assert search(last, records) == [] == measurer.measured
    for spec, options in ((replace(last, residual=False), {}), (last, {"schedules": ("quad_cuda",)})):
        assert not any(each.family.computes_before for each in search(spec, **options))


def test_a_search_is_told_ratios_as_times(fake, done):
    """A machine that slows down to half its speed for one trial does not change what the search learns."""
    fake()
    measurer = Fake({})(SPEC, WEIGHT, TARGET, None)
    runner = trial_runner.TrialRunner(measurer, WEIGHT, TuneOptions(seed=1), done)
    runner.choose_baseline()
    record = done[-1]
    slow = replace(record, times_us=(2 * record.time_us,), dense_times_us=(2 * record.dense_time_us,))
    assert runner.cost_us(slow) == runner.cost_us(record) == record.time_us / 50 * runner.baseline.time_us
    dense = next(each for each in done if each.is_dense)
    other = replace(record, baseline="dense_other")
    assert (runner.cost_us(dense), runner.cost_us(other)) == (dense.time_us, other.time_us)


@pytest.mark.parametrize(
    ("name", "other"), sampled([("arch", "other"), ("threads", "7"), ("tvm", "9")], [("threads", "7")])
)
def test_another_machine_s_trials_count_for_nothing(fake, done, name, other):
    fake()
    known = [replace(record, fingerprint={**record.fingerprint, name: other}) for record in done]
    assert len(tune(known=known)) == TRIALS


def test_trials_of_older_schedules_are_forgotten(fake, done):
    """Their decisions no longer fit, or their layout is gone; as the dense baseline they would end the tuning."""
    measurer = fake()
    stale = [replace(record, decisions={"gone": 1}) for record in done]
    stale += [replace(record, schedule="dense_cpu:gone") for record in stale if record.is_dense]
    records = tune(known=stale)
    assert len(records) == TRIALS
    assert measurer.baselines[0].decisions in [record.chosen for record in records]


@pytest.mark.parametrize(
    "status", sampled(["build_failed", "run_failed", "timeout", "wrong"], ["build_failed", "wrong"])
)
def test_failures_are_recorded_with_their_cause_and_cost_a_trial(fake, status):
    fake(folded_cpu=status)
    records = tune()
    failed = [record for record in records if record.schedule.startswith("folded_cpu")]
    assert failed
    assert {(record.status, record.cause) for record in failed} == {
        (status, f"{record.schedule} is broken") for record in failed
    }
    assert len(records) == TRIALS


def test_without_a_dense_kernel_there_is_nothing_to_compare_with(fake):
    fake(dense_cpu="build_failed")
    with pytest.raises(BuildError, match=r"no dense kernel to compare with: dense_cpu.* is broken"):
        tune()


def test_what_another_weight_was_found_to_like_is_tried_first(fake, done):
    fake()
    start = max((record for record in done if record.schedule.startswith("folded")), key=lambda record: record.time_us)
    found = list(tune_layer(SPEC, WEIGHT * 2, TARGET, TuneOptions(trials=TRIALS, batch=4), starts=[start]))
    assert keys(record for record in found if not record.is_dense)[0] == keys([start])[0]


def test_what_was_fastest_at_another_batch_is_tried_first_where_it_fits(fake, done):
    fake()
    folded = [record for record in done if record.schedule.startswith("folded")]
    start = max(folded, key=lambda record: record.time_us)
    misfit = replace(start, decisions={**start.decisions, "filters": 999})
    other = replace(start, schedule="folded_cpu:no_such_variant")
    options, spec = TuneOptions(trials=TRIALS, batch=4), replace(SPEC, n=8)
    found = list(tune_layer(spec, WEIGHT, TARGET, options, starts=[misfit, other, start]))
    assert keys(record for record in found if not record.is_dense)[0] == keys([start])[0]
    assert not {key for key in keys(found) if "999" in repr(key)}


def test_schedules_limit_the_search_but_not_the_baseline(fake):
    fake()
    names = {record.schedule.split(":")[0] for record in tune(schedules=("csr_cpu",))}
    assert names == {"csr_cpu", "dense_cpu"}


def test_a_space_of_one_point_ends(fake):
    fake()
    spec = ConvSpec(1, 1, 1, 1, 1, 1, 1)
    weight = np.ones(spec.weight_shape, np.float32)
    options = TuneOptions(trials=TRIALS, schedules=("folded_cpu",))
    records = list(tune_layer(spec, weight, TARGET, options))
    assert 2 <= len(records) < TRIALS
    assert len(set(keys(records))) == len(records)


class Clock:
    """Seconds that pass only while candidates are measured, one each."""

    def __init__(self, measurer):
        self.measurer = measurer

    def monotonic(self):
        return len(self.measurer.measured)


# The time ends within the dense trials, a batch, within the second sparse batch, and not at all.
@pytest.mark.parametrize(("seconds", "made"), [(1, 2), (6, 7), (TRIALS, TRIALS)])
def test_no_batch_is_begun_after_the_time(fake, monkeypatch, seconds, made):
    measurer = fake()
    monkeypatch.setattr(trial_runner, "time", Clock(measurer))
    options = TuneOptions(trials=TRIALS, batch=2, seconds=seconds)
    told = []
    found = list(tune_layer(SPEC, WEIGHT, TARGET, options, out_of_time=lambda: told.append("out of time")))
    assert len(found) == len(measurer.measured) == made
    assert len(told) == (made < TRIALS)


def test_reruns_get_ahead_however_short_the_time(fake, monkeypatch):
    """Each look at the clock takes a second: meeting the trials of the first run again takes longer than there is."""
    fake()
    seconds = itertools.count()
    monkeypatch.setattr(trial_runner, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    known, made = [], [1]
    while made[-1]:
        records = tune(known=known, batch=2, seconds=5)
        made.append(len(records))
        known += records
    assert made[1] == 7
    assert made[2] > 2
    assert len(set(keys(known))) == len(known) == TRIALS


# More than the searches below make until nothing more is gained, and the candidates after which that is said: more
# than the spaces' first ones, which are the same for each seed.
MOST, PATIENCE = 48, 14


def until_it_ends(known=(), **options):
    """Records of a search with many trials, and what is said of its end."""
    said = []
    given = TuneOptions(
        **{"trials": MOST, "batch": 4, "schedules": ("folded_cpu", "csr_cpu"), "patience": PATIENCE} | options
    )
    return list(tune_layer(SPEC, WEIGHT, TARGET, given, known, ended_early=said.append)), said


@pytest.fixture(scope="module")
def ended():
    """`until_it_ends` of a search that nothing is known of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "Measurer", Fake({}))
        return until_it_ends()


def test_a_search_that_gains_nothing_more_ends_and_says_so(fake, ended):
    fake()
    found, said = ended
    (sentence,) = said
    assert sentence.startswith(f"the last {PATIENCE} candidates gained less than 2%, so no more are tried; --full")
    times = [record.time_us for record in found if not record.is_dense]
    assert len(found) < MOST and min(times[-PATIENCE:]) > 0.98 * min(times[:-PATIENCE])
    # A batch earlier the last that gained was less than so many ago, or there were no more than those.
    before = times[:-4]
    assert min(before[-PATIENCE:]) < min(before[:-PATIENCE], default=float("inf"))
    # The same search, and one that goes on.
    patient, said = until_it_ends(patience=None)
    assert said == [] and len(patient) == MOST and keys(patient)[: len(found)] == keys(found)


def test_what_ended_early_is_not_begun_again(fake, ended):
    """By a rerun with these options."""
    fake()
    found, _ = ended
    again, said = until_it_ends(found)
    assert again == [] and len(said) == 1
    # Interrupted in the middle of it, the rest is made.
    rest, said = until_it_ends(found[:-5])
    assert keys(rest) == keys(found[-5:]) and len(said) == 1


@pytest.mark.exhaustive
def test_what_ended_early_goes_on_with_patience_or_another_seed(fake, ended):
    fake()
    found, _ = ended
    more, said = until_it_ends(found, patience=None)
    assert len(found) + len(more) == MOST and not said
    assert until_it_ends(found, seed=1)[0]


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"seconds": -1.0}, {"patience": 0}], ids=str)
def test_wrong_options_are_one_sentence(wrong):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}: .* found"):
        TuneOptions(**wrong)


def is_dense(record):
    return record.is_dense


def sparse_keys(records):
    return keys(itertools.filterfalse(is_dense, records))


def test_a_real_layer_is_tuned():
    options = MeasureOptions(repeats=2, min_repeat_ms=0.2)
    records = tune(trials=8, schedules=("folded_cpu",), measure=options)
    assert len(records) == 8
    assert {record.status for record in records} == {"ok"}, [record.cause for record in records]
    for record in records:
        assert len(record.times_us) == 2
        assert 0 <= record.error <= 1
        assert record.is_dense or record.speedup > 0
