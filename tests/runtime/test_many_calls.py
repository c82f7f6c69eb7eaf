"""Calls on a CPU from several threads give what single calls give, and many calls leave no memory behind."""

import threading

import numpy as np
import psutil
import pytest
import torch
import zoo

from tvm_sparse.compiler import build_model

THREADS, CALLS = 8, 50


@pytest.fixture(scope="module")
def model():
    module, shapes = zoo.TORCH["two_consumers"]
    return build_model.compile(module, torch.zeros(shapes[0]))


def test_several_threads(model):
    """The first call too, which makes the virtual machine."""
    sets = [torch.from_numpy(np.random.default_rng(seed).standard_normal(zoo.X, np.float32)) for seed in range(THREADS)]
    module, _ = zoo.TORCH["two_consumers"]
    start, wrong = threading.Barrier(THREADS), []

    def work(x):
        want = zoo.run_torch(module, x.numpy())
        start.wait()
        results = [model(x) for _ in range(CALLS)]
        for outputs in results:
            if not all(np.allclose(got, good, 1e-4, 1e-4) for got, good in zip(outputs, want, strict=True)):
                wrong.append(x)

    workers = [threading.Thread(target=work, args=(x,)) for x in sets]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("torch", 10_000),
        pytest.param("torch", 50_000, marks=pytest.mark.exhaustive),
        pytest.param("numpy", 50_000, marks=pytest.mark.exhaustive),
    ],
)
def test_many_calls_leave_no_memory_behind(model, kind, calls):
    """A few bytes a call would show as megabytes, each time; what an allocator keeps to itself shows once."""
    x = torch.zeros(zoo.X) if kind == "torch" else np.zeros(zoo.X, np.float32)
    process = psutil.Process()

    def grown_by(calls):
        before = process.memory_info().rss
        for _ in range(calls):
            model(x)
        return process.memory_info().rss - before

    grown_by(2_500)
    assert min(grown_by(calls) for _ in range(2)) < 20 * calls
