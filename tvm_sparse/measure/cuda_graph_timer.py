"""Timing a row of calls on an NVIDIA GPU by replaying it from a CUDA graph.

A kernel of a few microseconds ends before the host has launched the next one: timed in a loop it appears as slow as the
launches. In a graph the GPU launches by itself, early where a kernel asks for it, and reads the clock by itself too:
the events are nodes of the graph.
"""

from typing import Any

from tvm_sparse.measure.call_row import Row, size_bytes
from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver, cuda_driver
from tvm_sparse.runtime.gpu.cuda_graph import CudaGraph


class GraphTimer:
    """A row recorded as one graph.

    Its calls must have been made before on the thread that makes the timer, so that their kernels are loaded, and must
    launch on the stream that TVM considers current. DriverError where the driver reports an error.
    """

    def __init__(self, device: Any, row: Row, driver: CudaDriver | None = None):
        # The graph works on their tensors.
        self._row, self.calls, self._device = row, len(row.calls), device
        self._driver = driver or cuda_driver()
        self._stream = self._driver.create_stream()
        self._start, self._end = (self._driver.create_event(is_timed=True) for _ in range(2))
        self._graph = CudaGraph(self._driver, device, self._make_calls)

    def _make_calls(self) -> None:
        # Not before the worker has kept TVM from importing torch.
        import tvm_ffi

        stream = tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", self._device.index))
        for source, to in self._row.copies:
            self._driver.copy(to.data_ptr(), source.data_ptr(), size_bytes(source), stream)
        self._driver.record_event(self._start, stream, as_node=True)
        for call in self._row.calls:
            call()
        self._driver.record_event(self._end, stream, as_node=True)

    def time_us(self) -> float:
        """Mean time of one call over one replay."""
        self._graph.launch(self._stream)
        self._driver.synchronize_stream(self._stream)
        return self._driver.elapsed_us(self._start, self._end) / self.calls

    def close(self) -> None:
        """Free what the driver holds."""
        self._graph.close()
        for event in (self._start, self._end):
            self._driver.destroy_event(event)
        self._driver.destroy_stream(self._stream)
