"""How many threads the calls of small models get."""

import numpy as np
import pytest
import torch
from torch import nn

import tvm_sparse as ts
from tvm_sparse.runtime.cpu import cpu_runner
from tvm_sparse.runtime.cpu.short_calls import SHORT_S, ShortCalls


def calls(times, threads=8, count=30):
    """The threads of calls that take times[threads] seconds each, but for the first one, which is slow."""
    shares, found = ShortCalls(threads), []
    for number in range(count):
        found.append(shares.threads)
        shares.took(found[-1], times[found[-1]] if number else 1.0)
    return found


@pytest.mark.parametrize(("alone_s", "chosen"), [(2e-5, 1), (9e-5, 8), (5e-5, 8)])
def test_the_faster_way_is_kept_to(alone_s, chosen):
    """As many threads as there may be where there is no difference."""
    found = calls({1: alone_s, 8: 5e-5})
    assert found[:9] == [8] + [8, 1] * 4 and set(found[9:]) == {chosen}


def test_nothing_is_tried_of_a_long_call():
    assert set(calls({1: SHORT_S / 2, 8: SHORT_S * 1.1})) == {8}


def test_one_thread_is_no_choice():
    assert set(calls({1: 1e-5}, threads=1)) == {1}


def test_a_model_s_calls_have_these_threads(monkeypatch):
    """As a clock has it by which a thread alone is faster."""
    now, used = [0.0], []

    def run(threads, function):
        used.append(threads)
        now[0] += threads * 1e-5
        return function()

    model = ts.compile(nn.ReLU(), (torch.zeros(4),), target={"kind": "llvm", "num-cores": 2})
    monkeypatch.setattr(cpu_runner.CORE_SHARES, "run", run)
    monkeypatch.setattr(cpu_runner.time, "perf_counter", lambda: now[0])
    for _ in range(20):
        assert np.array_equal(model(np.float32([-1, 0, 1, 2])), [0, 0, 1, 2])
    # Before them, how it is run at all.
    assert used[-11:] == [1] * 11 and used.count(2) == 5
