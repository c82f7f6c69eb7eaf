"""Timing a row of calls on an NVIDIA GPU by replaying it from a CUDA graph.

A kernel of a few microseconds ends before the host has launched the next one: timed in a loop it appears as slow as the
launches. In a graph the GPU launches by itself, early where a kernel asks for it, and reads the clock by itself too:
the events are nodes of the graph. The driver is called directly, so that neither torch nor the CUDA toolkit need be
installed.
"""

import ctypes
from typing import Any

from tvm_sparse.measure.call_row import Row, size_bytes

_NON_BLOCKING, _RELAXED, _AS_NODE = 1, 2, 1


class GraphTimer:
    """A row recorded as one graph.

    Its calls must have been made before on the thread that makes the timer, so that their kernels are loaded, and must
    launch on the stream that TVM considers current. `driver` is ``libcuda``. RuntimeError where the driver reports an
    error, by name.
    """

    def __init__(self, device: Any, row: Row, driver: Any = None):
        import tvm_ffi

        self.calls = len(row.calls)
        # The graph works on their tensors.
        self._row = row
        self._driver = ctypes.CDLL("libcuda.so.1") if driver is None else driver
        self._stream, self._graph, self._executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._events = start, end = (ctypes.c_void_p(), ctypes.c_void_p())
        self._check("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        for event in self._events:
            self._check("cuEventCreate", ctypes.byref(event), 0)
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device.index), self._stream.value):
            self._check("cuStreamBeginCapture_v2", self._stream, _RELAXED)
            for source, to in row.copies:
                self._copy(source, to)
            self._check("cuEventRecordWithFlags", start, self._stream, _AS_NODE)
            for call in row.calls:
                call()
            self._check("cuEventRecordWithFlags", end, self._stream, _AS_NODE)
            self._check("cuStreamEndCapture", self._stream, ctypes.byref(self._graph))
        self._check("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), self._graph, ctypes.c_ulonglong(0))

    def time_us(self) -> float:
        """Mean time of one call over one replay."""
        self._check("cuGraphLaunch", self._executable, self._stream)
        self._check("cuStreamSynchronize", self._stream)
        milliseconds = ctypes.c_float()
        self._check("cuEventElapsedTime", ctypes.byref(milliseconds), *self._events)
        return milliseconds.value * 1e3 / self.calls

    def close(self) -> None:
        """Free what the driver holds."""
        self._check("cuGraphExecDestroy", self._executable)
        self._check("cuGraphDestroy", self._graph)
        for event in self._events:
            self._check("cuEventDestroy_v2", event)
        self._check("cuStreamDestroy_v2", self._stream)

    def _copy(self, source: Any, to: Any) -> None:
        addresses = [ctypes.c_uint64(tensor.data_ptr()) for tensor in (to, source)]
        self._check("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(size_bytes(source)), self._stream)

    def _check(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {text.value.decode() if text.value else code}")
