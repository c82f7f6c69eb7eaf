"""Timing calls on an NVIDIA GPU by replaying them from a CUDA graph.

A kernel of a few microseconds ends before the host has launched the next one: timed in a loop it appears as slow as the
launches. In a graph the GPU launches by itself.
"""

from collections.abc import Callable
from typing import Any

from tvm_sparse.runtime.cuda_driver import cuda_driver
from tvm_sparse.runtime.cuda_graph import CudaGraph


class GraphTimer:
    """`calls` calls of `function` recorded as one graph; see `CudaGraph` for what `function` may be.

    Raises
    ------
    RuntimeError
        The driver reports an error, by name.
    """

    def __init__(self, device: Any, function: Callable[[], Any], calls: int):
        def row() -> None:
            for _ in range(calls):
                function()

        self.calls = calls
        self._driver = cuda_driver()
        self._graph = CudaGraph(self._driver, device, row)
        self._stream = self._driver.create_stream()
        self._events = (self._driver.create_event(timed=True), self._driver.create_event(timed=True))

    def time_us(self) -> float:
        """Mean time of one call over one replay."""
        start, end = self._events
        self._driver.record_event(start, self._stream)
        self._graph.launch(self._stream)
        self._driver.record_event(end, self._stream)
        self._driver.synchronize_event(end)
        return self._driver.elapsed_us(start, end) / self.calls

    def close(self) -> None:
        """Free what the driver holds."""
        self._graph.close()
        for event in self._events:
            self._driver.destroy_event(event)
        self._driver.destroy_stream(self._stream)
