"""Which layer is tuned next, with searches that give made-up times."""

import contextlib
import time
from types import SimpleNamespace

import numpy as np
import pytest
from factories import make_record

from tvm_sparse.autotune.session import Progress, Task
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.optimizer import contest as module
from tvm_sparse.optimizer.contest import FIRST_SLICE, PATIENCE, SLICE, Contest
from tvm_sparse.optimizer.session import OPTIONS
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

TARGET = resolve_target("llvm")


def task(channels, layers=1):
    spec = ConvSpec(1, channels, 14, 14, channels, 3, 3, padding=(1, 1, 1, 1))
    weight = normal_weight(spec, 0.1, 0)
    return Task(tuple(f"{channels}.{i}" for i in range(layers)), spec, weight, SparsityPattern.of(weight))


@pytest.fixture
def fake(monkeypatch):
    """Searches whose times are given: channels -> times in microseconds, dense first; closed ones are noted."""

    class Fake:
        def __init__(self):
            self.times, self.order, self.closed = {}, [], []

        def tune_layer(self, spec, weight, target, options, known, out_of_time, starts, worker_pool):
            times = self.times[spec.c][len(known) :]
            try:
                for number, time_us in enumerate(times):
                    self.order.append(spec.c)
                    is_dense = number == 0 and not known
                    yield make_record(
                        spec=spec,
                        pattern=SparsityPattern.of(weight),
                        schedule="dense_cpu" if is_dense else "folded_cpu",
                        decisions={"filters": len(known) + number + 1},
                        times_us=(time_us,),
                        dense_times_us=() if is_dense else (100.0,),
                        baseline="" if is_dense else "dense_cpu",
                        fingerprint=fingerprint_of(target),
                        target=target_json(target),
                    )
            finally:
                self.closed.append(spec.c)

    found = Fake()
    monkeypatch.setattr(module, "tune_layer", found.tune_layer)
    return found


def run(fake, tasks, tmp_path, seconds=60.0):
    log, seen = TuningLog(tmp_path / "log.jsonl"), []
    with Contest(tasks, TARGET, log, OPTIONS, Progress()) as contest:
        contest.run(time.monotonic() + seconds, lambda entry: seen.append(contest.model_us))
    return contest, log, seen


def test_every_layer_is_measured_once_before_any_is_twice_the_largest_first(fake, tmp_path):
    fake.times = {c: [100.0, *np.linspace(50, 1, 200)] for c in (8, 32, 16)}
    _, log, _ = run(fake, [task(8), task(32), task(16)], tmp_path, seconds=5.0)
    first = fake.order[: 3 * FIRST_SLICE]
    assert first == [32] * FIRST_SLICE + [16] * FIRST_SLICE + [8] * FIRST_SLICE
    assert len(log.records) == len(fake.order)


def test_time_goes_where_the_model_spends_it(fake, tmp_path):
    """The same gains of a layer that takes a hundred times as long, or that the model has many times."""
    gaining = [100.0 * 0.98**i for i in range(400)]
    fake.times = {8: gaining, 16: [each / 100 for each in gaining]}
    tasks = [task(8), task(16)]
    with Contest(tasks, TARGET, TuningLog(tmp_path / "log.jsonl"), OPTIONS, Progress()) as contest:
        contest.run(time.monotonic() + 60, lambda _: _stop_after(fake, 100))
    assert fake.order.count(8) > 5 * fake.order.count(16)


def _stop_after(fake, trials):
    if len(fake.order) >= trials:
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _no_interrupt(request, monkeypatch):
    """`run` ends where a look asks for it."""
    real = Contest.run

    def run(self, end_s, look):
        with contextlib.suppress(KeyboardInterrupt):
            real(self, end_s, look)

    monkeypatch.setattr(Contest, "run", run)


def test_a_layer_that_gains_nothing_more_ends_and_so_does_the_contest(fake, tmp_path):
    fake.times = {8: [100.0, 50.0, *[60.0] * 1000]}
    contest, log, _ = run(fake, [task(8)], tmp_path)
    assert contest.entries[0].is_at_end
    assert len(log.records) == FIRST_SLICE + PATIENCE * SLICE
    assert fake.closed == [8]


def test_a_search_that_made_its_trials_is_gone_on_with(fake, tmp_path):
    """`tune_layer` ends after the trials it was asked for; the next knows them."""
    times = [100.0 * 0.9**i for i in range(30)]
    fake.times = {8: times}
    real = fake.tune_layer

    def limited(*words):
        for number, record in enumerate(real(*words)):
            yield record
            if number == 6:
                return

    module.tune_layer = limited
    contest, log, _ = run(fake, [task(8)], tmp_path)
    assert len(log.records) == len(times)
    assert contest.entries[0].is_at_end


def test_the_model_is_all_its_layers(fake, tmp_path):
    fake.times = {8: [100.0, 40.0], 16: [10.0, 20.0]}
    contest, _, seen = run(fake, [task(8, layers=3), task(16)], tmp_path)
    assert contest.model_us == 3 * 40 + 10 and contest.dense_us == 3 * 100 + 10
    assert seen[-1] == contest.model_us


def test_both_sums_are_of_the_same_layers(tmp_path):
    contest = Contest([task(8), task(16)], TARGET, TuningLog(tmp_path / "log.jsonl"), OPTIONS, Progress())
    measured, without_dense = contest.entries
    measured.dense_us, measured.sparse_us, without_dense.sparse_us = 100.0, 40.0, 7.0
    assert (contest.model_us, contest.dense_us) == (40.0, 100.0)


def test_what_is_known_is_not_measured_again(fake, tmp_path):
    fake.times = {8: [100.0, 40.0, 30.0]}
    run(fake, [task(8)], tmp_path)
    fake.order.clear()
    contest, log, _ = run(fake, [task(8)], tmp_path)
    assert fake.order == [] and len(log.records) == 3
    assert contest.model_us == 30


def test_no_trial_begins_after_the_end(fake, tmp_path):
    fake.times = {8: [100.0, 40.0]}
    _, log, _ = run(fake, [task(8)], tmp_path, seconds=-1)
    assert not log.records


def test_a_layer_that_cannot_be_measured_costs_the_others_nothing(fake, tmp_path, monkeypatch):
    fake.times = {8: [100.0, 40.0]}
    real = fake.tune_layer

    def tune_layer(spec, *words):
        if spec.c == 16:
            raise BuildError("convolution", "no dense kernel to compare with")
        yield from real(spec, *words)

    monkeypatch.setattr(module, "tune_layer", tune_layer)
    contest, log, _ = run(fake, [task(16), task(8)], tmp_path)
    assert [record.spec.c for record in log.records] == [8, 8]
    assert all(entry.is_at_end for entry in contest.entries)


def test_no_batch_begins_that_would_end_too_late(fake, tmp_path, monkeypatch):
    """The large layer's trials take 30 s each, the small one's 1 s, by a clock that only they move."""
    fake.times = {32: list(np.linspace(1000, 500, 200)), 8: list(np.linspace(10, 5, 200))}
    clock_s = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))

    tune_layer = fake.tune_layer

    def slow(spec, *arguments):
        for record in tune_layer(spec, *arguments):
            clock_s[0] += 30 if spec.c == 32 else 1
            yield record

    monkeypatch.setattr(module, "tune_layer", slow)
    with Contest([task(32), task(8)], TARGET, TuningLog(tmp_path / "log.jsonl"), OPTIONS, Progress()) as contest:
        contest.run(200.0, lambda entry: None)
    # All time is used: first by those that gain most, in the end by those that still fit.
    assert clock_s[0] == 200
    assert fake.order[-10:] == [8] * 10


def test_layers_with_a_pool_are_tuned_alone_and_with_it(tmp_path, monkeypatch):
    """Times with the pool are no times of the layers alone."""

    def tune_layer(spec, weight, target, options, known, out_of_time, starts, worker_pool):
        pools, log_has = options.schedules == ("pooled_cuda",), {each.schedule for each in known}
        for schedule, time_us in (("dense_cpu", 100.0), ("pooled_cuda" if pools else "folded_cpu", 40.0 + pools)):
            if schedule not in log_has:
                yield make_record(
                    spec=spec,
                    pattern=SparsityPattern.of(weight),
                    schedule=schedule,
                    times_us=(time_us,),
                    dense_times_us=() if schedule == "dense_cpu" else (100.0,),
                    baseline="" if schedule == "dense_cpu" else "dense_cpu",
                    fingerprint=fingerprint_of(target),
                    target=target_json(target),
                )

    monkeypatch.setattr(module, "tune_layer", tune_layer)
    log = TuningLog(tmp_path / "log.jsonl")
    with Contest([task(8, layers=2)], TARGET, log, OPTIONS, Progress(), [task(8)]) as contest:
        contest.run(time.monotonic() + 60, lambda _: None)
    assert [(each.pools, each.time_us) for each in contest.entries] == [(False, 40.0), (True, 41.0)]
    assert (contest.model_us, contest.dense_us) == (80.0, 200.0)
    assert [each.schedule for each in log.records] == ["dense_cpu", "folded_cpu", "pooled_cuda"]
