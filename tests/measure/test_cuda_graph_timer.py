"""What the driver is told, and in which order: copies, then a row between two events, recorded once and replayed."""

import ctypes
from types import SimpleNamespace

import pytest
import tvm_ffi

from tvm_sparse.measure.call_row import Row
from tvm_sparse.measure.cuda_graph_timer import GraphTimer
from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver

DEVICE = SimpleNamespace(type="cuda", index=0)
FREED = ["cuGraphExecDestroy", "cuEventDestroy_v2", "cuEventDestroy_v2", "cuStreamDestroy_v2"]


class Driver:
    """Notes each call by its name; `failing` is the one that reports an error."""

    def __init__(self, failing=""):
        self.noted, self.arguments, self.failing, self.handles = [], {}, failing, 0

    def __getattr__(self, name):
        def function(*arguments):
            if name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_LAUNCH_FAILED"
                return 0
            self.noted.append(name)
            self.arguments.setdefault(name, []).append(arguments)
            if name in ("cuStreamCreate", "cuEventCreate", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"):
                self.handles += 1
                arguments[name == "cuStreamEndCapture"]._obj.value = 1000 + self.handles
            if name == "cuEventElapsedTime":
                arguments[0]._obj.value = 0.006
            return 719 * (name == self.failing)

        return function


class Tensor:
    """A tensor of a GPU."""

    shape, dtype = (2, 3), "float32"

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def timer(driver):
    def call():
        stream = tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0))
        driver.noted.append(f"call on {stream}")

    return GraphTimer(DEVICE, Row([call] * 2, [(Tensor(7 << 40), Tensor(8 << 40))]), CudaDriver(driver))


def test_a_row_is_recorded_between_events_that_are_nodes():
    driver = Driver()
    timer(driver)
    assert driver.noted == [
        "cuStreamCreate",
        "cuEventCreate",
        "cuEventCreate",
        "cuStreamCreate",
        "cuStreamBeginCapture_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuEventRecordWithFlags",
        "call on 1004",
        "call on 1004",
        "cuEventRecordWithFlags",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphDestroy",
        "cuStreamDestroy_v2",
    ]
    (start, end) = driver.arguments["cuEventRecordWithFlags"]
    # CU_EVENT_RECORD_EXTERNAL: else the event would be one of the recording, and never happen.
    assert [(event.value, stream.value, flags) for event, stream, flags in (start, end)] == [
        (1002, 1004, 1),
        (1003, 1004, 1),
    ]
    ((to, source, size, stream),) = driver.arguments["cuMemcpyDtoDAsync_v2"]
    assert (to.value, source.value, size.value, stream.value) == (8 << 40, 7 << 40, 24, 1004)
    assert ctypes.sizeof(to) == 8


def test_a_replay_takes_no_time_of_the_host_s():
    driver = Driver()
    found = timer(driver)
    driver.noted.clear()
    assert found.time_us() == pytest.approx(3.0)
    assert driver.noted == ["cuGraphLaunch", "cuStreamSynchronize", "cuEventElapsedTime"]
    driver.noted.clear()
    found.close()
    assert driver.noted == FREED


@pytest.mark.parametrize("failing", ["cuStreamEndCapture", "cuGraphLaunch"])
def test_an_error_of_the_driver_has_its_name(failing):
    with pytest.raises(RuntimeError, match=f"{failing}: CUDA_ERROR_LAUNCH_FAILED"):
        timer(Driver(failing)).time_us()
