"""Calls are timed as one graph; see `fake_cuda` for the GPU."""

import numpy as np
import pytest
import tvm
from fake_cuda import FakeCuda

from tvm_sparse.measure import cuda_graph_timer
from tvm_sparse.runtime.cuda_driver import CudaDriver, DriverError


@pytest.fixture
def cuda(monkeypatch):
    cuda = FakeCuda()
    driver = CudaDriver(cuda)
    monkeypatch.setattr(cuda_graph_timer, "cuda_driver", lambda: driver)
    with driver.use_device(0), driver.relaxed_capture():
        yield cuda


@pytest.fixture
def increment(cuda):
    """A call that adds 1 to its argument, and the argument."""
    counter = tvm.runtime.tensor(np.zeros(1, np.float32))
    cuda.kernel("tests.increment", lambda array: np.add(array, 1, out=array))
    kernel = tvm.get_global_func("tests.increment")
    return (lambda: kernel(counter)), counter


def test_a_replay_makes_all_calls(cuda, increment):
    call, counter = increment
    timer = cuda_graph_timer.GraphTimer(tvm.cuda(0), call, 20)
    assert counter.numpy() == 0, "recording runs nothing"
    for replay in range(1, 4):
        assert timer.time_us() == pytest.approx(1e3 * cuda.milliseconds / 20)
        assert counter.numpy() == 20 * replay
    assert cuda.calls["cuGraphLaunch"] == 3
    timer.close()
    assert not any(cuda.alive.values())


def test_a_failure_is_named(cuda, increment):
    cuda.codes["cuGraphInstantiateWithFlags"] = 2
    with pytest.raises(DriverError, match=r"^cuGraphInstantiateWithFlags: CUDA_ERROR_OUT_OF_MEMORY$"):
        cuda_graph_timer.GraphTimer(tvm.cuda(0), increment[0], 5)
    assert not any(cuda.alive.values())
