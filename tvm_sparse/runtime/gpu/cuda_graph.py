"""CudaGraph."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver, DriverError


class CudaGraph:
    """What `function` launches on the stream that TVM considers current, recorded to be run by one launch.

    It must have been called before, so that its kernels are loaded; what it does on the host happens now, once.
    DriverError where the driver cannot record it. What `function` raises comes through; many raise when they wait
    for the GPU, which cannot be recorded.
    """

    def __init__(self, driver: CudaDriver, device: Any, function: Callable[[], object]):
        # It imports torch, which not every process waits for.
        import tvm_ffi

        self._driver = driver
        stream = driver.create_stream()
        try:
            driver.begin_capture(stream)
            try:
                with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device.index), stream):
                    function()
            except BaseException:
                # The driver says that the capture is spoilt; `function` has said why.
                with suppress(DriverError):
                    driver.destroy_graph(driver.end_capture(stream))
                raise
            graph = driver.end_capture(stream)
            try:
                self._executable = driver.instantiate(graph)
            finally:
                driver.destroy_graph(graph)
        finally:
            driver.destroy_stream(stream)

    def launch(self, stream: int) -> None:
        """Run it on a stream."""
        self._driver.launch(self._executable, stream)

    def close(self) -> None:
        """Free what the driver holds."""
        self._driver.destroy_executable(self._executable)
