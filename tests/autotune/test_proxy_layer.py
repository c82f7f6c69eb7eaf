"""Large layers are searched on a sample of their output channels; measuring is faked."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from parameters import sampled
from test_layer import Fake, keys

from tvm_sparse.autotune import layer, session
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.progress.live_progress import LiveProgress
from tvm_sparse.autotune.search import evolutionary_search, proxy_layer, trial_runner
from tvm_sparse.autotune.search.proxy_layer import WHOLE, Sample
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display.consoles import progress_console
from tvm_sparse.errors import BuildError
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import find_space, spaces_of
from tvm_sparse.target.resolve import resolve_target

CUDA = resolve_target('{"kind":"cuda","arch":"sm_90"}')
SPEC = ConvSpec(1, 64, 7, 7, 128, 3, 3, padding=(1, 1, 1, 1))
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.1, 1.5, 0).astype(np.float32)
TRIALS = 16


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """The layer counts as large; nothing is built."""
    monkeypatch.setattr(proxy_layer, "LARGE_NON_ZEROS", 1000)
    monkeypatch.setattr(evolutionary_search, "POPULATION", 4)
    # A measurer each for the layer and its sample.
    made = []

    def measurer(*arguments):
        made.append(Fake({})(*arguments))
        return made[-1]

    for module in (layer, proxy_layer):
        monkeypatch.setattr(module, "Measurer", measurer)
    return made


def tune(log, **options):
    task = session.Task(("conv",), SPEC, WEIGHT, SparsityPattern.of(WEIGHT))
    progress = LiveProgress(progress_console())
    options = TuneOptions(**{"trials": TRIALS, "batch": 4, "schedules": ("folded_cuda",), **options})
    session.tune_task(task, CUDA, TuningLog(log), options, progress)
    return TuningLog(log).records, progress.tasks[0]


def test_a_sample_has_a_share_of_the_filters_and_as_many_times_more_images():
    found = Sample.of(SPEC, WEIGHT, CUDA)
    assert found.spec == replace(SPEC, n=2, k=64)
    assert np.array_equal(found.weight, WEIGHT[::2])


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        (replace(SPEC, k=64), CUDA),
        (replace(SPEC, groups=2), CUDA),
        (replace(SPEC, n=200_000), CUDA),
        (SPEC, resolve_target("llvm")),
    ],
    ids=["filters of one tile", "groups", "gigabytes", "a CPU"],
)
def test_what_cannot_be_divided_has_no_sample(spec, target):
    assert Sample.of(spec, np.ones(spec.weight_shape, np.float32), target) is None


def test_what_is_built_fast_has_no_sample(monkeypatch):
    monkeypatch.setattr(proxy_layer, "LARGE_NON_ZEROS", 100_000)
    assert Sample.of(SPEC, WEIGHT, CUDA) is None


def test_decisions_of_the_sample_fit_the_layer():
    found = Sample.of(SPEC, WEIGHT, CUDA)
    spaces, _ = spaces_of(SPEC, pattern(), CUDA, ["folded_cuda", "csr_cuda"])
    for each in spaces:
        twin, default = found.twin(each, CUDA), each.starts()[0]
        assert twin.decisions_of(twin.scheduled(default)) == default


def test_a_value_that_the_other_does_not_have_is_refused():
    batch, one = (find_space("folded_cuda:multistage-7x7-pixels1", replace(SPEC, n=n), pattern(), CUDA) for n in (4, 1))
    decisions = {**batch.starts()[0], "images": 2}
    batch.scheduled(decisions)
    with pytest.raises(BuildError, match="decision images does not fit, found 2; allowed: one of 1"):
        one.scheduled(decisions)


def pattern():
    return SparsityPattern.of(WEIGHT)


def test_the_best_of_the_sample_are_measured_whole(tmp_path, large):
    records, progress = tune(tmp_path / "log.jsonl")
    sampled = large[1].measured
    assert len(records) == progress.done == TRIALS
    of_sample = [record for record in records if record.spec != SPEC]
    own = [record for record in records if record.spec == SPEC and not record.is_dense]
    assert (len(of_sample), len(own)) == (len(sampled), WHOLE)
    assert all(record.dense_times_us for record in own)
    assert {record.pattern for record in of_sample} == {SparsityPattern.of(WEIGHT[::2])}
    assert progress.time_us == min(record.time_us for record in own)
    values = []
    for record in sorted(of_sample, key=lambda record: record.time_us):
        layer = find_space(record.schedule, SPEC, pattern(), CUDA)
        with suppress(BuildError):
            layer.scheduled(record.decisions)
            values.append((record.schedule, record.decisions))
    assert [(record.schedule, record.decisions) for record in own] == values[:WHOLE]


@pytest.mark.parametrize("interrupted_after", sampled([2, 6, TRIALS - 1], [6]))
def test_an_interrupted_search_goes_on(tmp_path, large, interrupted_after):
    records, _ = tune(tmp_path / "whole.jsonl")
    del large[:]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(record.to_line() + "\n" for record in records[:interrupted_after]))
    again, progress = tune(log)
    assert keys(again) == keys(records)
    assert sum(len(each.measured) for each in large) == progress.new == TRIALS - interrupted_after
    del large[:]
    tune(log)
    assert not any(each.measured for each in large)


def test_where_no_kernel_of_the_sample_runs_the_layer_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(proxy_layer, "Measurer", Fake({"folded": "build_failed"}))
    records, progress = tune(tmp_path / "log.jsonl")
    assert {record.status for record in records if record.spec != SPEC} == {"build_failed"}
    assert sum(record.spec == SPEC and not record.is_dense for record in records) == WHOLE
    assert progress.time_us


def test_few_trials_are_of_the_layer_itself(tmp_path):
    assert {record.spec for record in tune(tmp_path / "few.jsonl", trials=8)[0]} == {SPEC}


def test_half_of_the_time_is_for_the_sample(tmp_path, monkeypatch):
    class Clock:
        """A second a look."""

        now = 0

        def monotonic(self):
            self.now += 1
            return self.now

    monkeypatch.setattr(trial_runner, "time", Clock())
    records, progress = tune(tmp_path / "log.jsonl", trials=40, seconds=14)
    assert progress.is_out_of_time
    assert sum(record.spec == SPEC and not record.is_dense for record in records) == WHOLE
    assert 0 < sum(record.spec != SPEC for record in records) < 30
