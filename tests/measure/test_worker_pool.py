"""Worker processes are kept for the next convolution."""

import numpy as np

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import Candidate, MeasureOptions
from tvm_sparse.measure.worker_pool import WorkerPool
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
OPTIONS = MeasureOptions(repeats=1, min_repeat_ms=0.1, builders=1)


def _measure(spec, pool):
    """Statuses of two kernels of `spec`, and the processes that built and ran them."""
    weight = np.ones(spec.weight_shape, np.float32)
    with Measurer(spec, weight, TARGET, OPTIONS, pool) as measurer:
        found = [outcome.status for outcome in measurer.measure([Candidate("csr_cpu"), Candidate("dense_cpu")])]
        workers = (*measurer._workers, measurer._runner)
        return found, [worker._channel.pid for worker in workers], workers


def test_the_next_convolution_gets_the_same_processes():
    with WorkerPool() as pool:
        first, processes, _ = _measure(ConvSpec(1, 2, 4, 4, 2, 3, 3), pool)
        second, others, workers = _measure(ConvSpec(1, 3, 5, 5, 2, 1, 1), pool)
        assert first == second == ["ok", "ok"]
        assert sorted(processes) == sorted(others)
        assert all(worker._channel.is_alive() for worker in workers)
    assert all(worker._channel is None for worker in workers)


def test_a_killed_worker_is_not_hired_again():
    with WorkerPool() as pool:
        worker = pool.hire({"A": "1"}, 1e9)
        worker.kill()
        pool.give_back({"A": "1"}, worker)
        assert pool.hire({"A": "1"}, 1e9) is not worker


def test_workers_with_other_variables_are_others():
    with WorkerPool() as pool:
        worker = pool.hire({"A": "1"}, 1e9)
        pool.give_back({"A": "1"}, worker)
        assert pool.hire({"A": "2"}, 1e9) is not worker
        assert pool.hire({"A": "1"}, 2e9) is worker and worker.memory_bytes == 2e9
