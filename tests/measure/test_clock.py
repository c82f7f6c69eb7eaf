"""Clocks: what is timed, what is not, how often, in which order; and that cold code takes longer on this machine."""

import statistics

import numpy as np
import pytest
import tvm
from code_library import write_library
from test_call_row import needs_gcc

from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.measure import clock
from tvm_sparse.measure.call_row import Row, Sharing, cold_row
from tvm_sparse.measure.clock import RowClock, RowTimer, cold_clock, in_turns, warm_clock
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import Candidate, MeasureOptions
from tvm_sparse.measure.worker_pool import WorkerPool
from tvm_sparse.target.resolve import resolve_target

CPU = tvm.cpu(0)


class FakeTimer:
    """Runs of 10 calls that take 5 us each; the first run after another clock's takes 100."""

    calls = 10

    def __init__(self, order, name):
        self.order, self.name = order, name

    def time_us(self):
        is_first = not self.order or self.order[-1] != self.name
        self.order.append(self.name)
        return 100.0 if is_first else 5.0

    def close(self):
        self.order.append(f"{self.name} closed")


def test_a_short_row_fills_a_measurement_and_its_first_run_does_not_count():
    order = []
    first, second = (RowClock(FakeTimer(order, name), min_repeat_ms=0.17) for name in "ab")
    order.clear()
    assert in_turns({"first": first, "second": second}, 2) == {"first": [5.0, 5.0], "second": [5.0, 5.0]}
    # 0.17 ms are four runs of 50 us.
    assert order == (["a"] * 5 + ["b"] * 5) * 2
    first.close()
    assert order[-1] == "a closed"


def test_copies_come_before_the_calls_and_are_not_timed(monkeypatch):
    order = []

    class Tensor:
        def copyto(self, to):
            order.append(to)

    def now():
        order.append("clock")
        return 3000 * order.count("clock")

    monkeypatch.setattr(clock.time, "perf_counter_ns", now)
    timer = RowTimer(Row([lambda: order.append("call")] * 3, [(Tensor(), "memory"), (Tensor(), "input")]))
    assert timer.time_us() == 1.0
    assert order == ["memory", "input", "clock", "call", "call", "call", "clock"]


@needs_gcc
@pytest.mark.parametrize("code_bytes", [600 << 10, 2400 << 10])
def test_code_that_other_code_displaces_takes_longer(tmp_path, code_bytes):
    library = write_library(tmp_path / "kernel.so", code_bytes)
    tensors = [tvm.runtime.tensor(np.zeros(64, np.float32), CPU) for _ in range(2)]
    warm = warm_clock(tvm.runtime.load_module(library), tensors, 2.0)
    row = cold_row(library, Sharing.NONE, [], tensors, warm.time_us(), 5000)
    times = in_turns({"warm": warm, "cold": cold_clock(row, CPU, 2.0)}, 7)
    # The least: other tests run at the same time.
    assert min(times["cold"]) > 1.2 * min(times["warm"])


SMALL = ConvSpec(1, 8, 7, 7, 8, 3, 3, padding=(1, 1, 1, 1))
LARGE = ConvSpec(1, 64, 7, 7, 64, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True)


@pytest.fixture(scope="module")
def measured():
    """What comes of timing a kernel beside its baseline, in processes that have imported TVM before."""
    with WorkerPool() as pool:

        def measured(spec, density, target, schedule, baseline, options):
            with Measurer(spec, normal_weight(spec, density, (0,)), target, options, pool) as measurer:
                measurer.set_baseline(Candidate(baseline))
                (outcome,) = measurer.measure([Candidate(schedule)])
            assert outcome.status == "ok", outcome.cause
            return outcome

        yield measured


@pytest.mark.parametrize(("spec", "cold"), [(SMALL, True), (LARGE, False)])
def test_small_kernels_of_a_cpu_and_those_that_are_only_run_are_not_timed_cold(measured, spec, cold):
    options = MeasureOptions(repeats=2, min_repeat_ms=0.1, builders=1, cold=cold)
    outcome = measured(spec, 0.12, resolve_target('{"kind":"llvm","num-cores":1}'), "csr_cpu", "dense_cpu", options)
    assert (outcome.cold_times_us, outcome.dense_cold_times_us) == (None, None)
    assert len(outcome.times_us) == len(outcome.dense_times_us) == 2


def test_real_kernels_of_a_cpu_are_timed_cold_beside_their_baseline(measured):
    options = MeasureOptions(repeats=3, min_repeat_ms=1, builders=1)
    outcome = measured(LARGE, 0.12, resolve_target('{"kind":"llvm","num-cores":1}'), "csr_cpu", "dense_cpu", options)
    times = (outcome.times_us, outcome.dense_times_us, outcome.cold_times_us, outcome.dense_cold_times_us)
    assert [len(each) for each in times] == [3] * 4
    assert min(map(min, times)) > 0


@pytest.mark.slow
def test_a_folded_kernel_of_a_cpu_takes_longer_with_cold_code(measured):
    spec = ConvSpec(1, 128, 7, 7, 128, 3, 3, padding=(1, 1, 1, 1))
    options = MeasureOptions(repeats=5, min_repeat_ms=2, builders=1, build_timeout_s=600)
    outcome = measured(spec, 0.1, resolve_target('{"kind":"llvm","num-cores":1}'), "folded_cpu", "dense_cpu", options)
    # 1.4 times as long where nothing else runs; what does makes some times longer, and none shorter.
    assert min(outcome.cold_times_us) > 1.2 * min(outcome.times_us)


# A quarter of a megabyte of code that a batch of one executes once or twice, little enough to be compiled in one piece,
# which does not prefetch itself; and little code, executed by 1.6 million threads.
ONCE = ConvSpec(1, 128, 14, 14, 128, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
OFTEN = ConvSpec(512, 16, 56, 56, 16, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)


@pytest.mark.gpu
@pytest.mark.parametrize(("spec", "least", "most"), [(ONCE, 1.2, 20), (OFTEN, 0.8, 1.25)], ids=["once", "often"])
def test_cold_code_costs_a_gpu_what_is_executed_once(measured, spec, least, most):
    options = MeasureOptions(repeats=7, build_timeout_s=300)
    outcome = measured(spec, 0.11, resolve_target("cuda"), "folded_cuda", "dense_cuda", options)
    print({name: getattr(outcome, name) for name in ("times_us", "cold_times_us", "dense_cold_times_us")})
    assert least <= statistics.median(outcome.cold_times_us) / statistics.median(outcome.times_us) <= most
    assert min(outcome.dense_cold_times_us) > 0
