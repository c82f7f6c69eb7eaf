"""Timing calls on an NVIDIA GPU by replaying them from a CUDA graph.

A kernel of a few microseconds ends before the host has launched the next one: timed in a loop it appears as slow as the
launches. In a graph the GPU launches by itself. The driver is called directly, so that neither torch nor the CUDA
toolkit need be installed.
"""

import ctypes
from collections.abc import Callable
from typing import Any

_NON_BLOCKING, _RELAXED = 1, 2


class GraphTimer:
    """`calls` calls of `function` recorded as one graph.

    `function` must have been called before on the thread that makes the timer, so that its kernels are loaded, and must
    launch on the stream that TVM considers current.

    Raises
    ------
    RuntimeError
        The driver reports an error, by name.
    """

    def __init__(self, device: Any, function: Callable[[], Any], calls: int):
        import tvm_ffi

        self.calls = calls
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._stream, self._graph, self._executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._events = (ctypes.c_void_p(), ctypes.c_void_p())
        self._check("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        for event in self._events:
            self._check("cuEventCreate", ctypes.byref(event), 0)
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device.index), self._stream.value):
            self._check("cuStreamBeginCapture_v2", self._stream, _RELAXED)
            for _ in range(calls):
                function()
            self._check("cuStreamEndCapture", self._stream, ctypes.byref(self._graph))
        self._check("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), self._graph, ctypes.c_ulonglong(0))

    def time_us(self) -> float:
        """Mean time of one call over one replay."""
        start, end = self._events
        self._check("cuEventRecord", start, self._stream)
        self._check("cuGraphLaunch", self._executable, self._stream)
        self._check("cuEventRecord", end, self._stream)
        self._check("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._check("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value * 1e3 / self.calls

    def close(self) -> None:
        """Free what the driver holds."""
        self._check("cuGraphExecDestroy", self._executable)
        self._check("cuGraphDestroy", self._graph)
        for event in self._events:
            self._check("cuEventDestroy_v2", event)
        self._check("cuStreamDestroy_v2", self._stream)

    def _check(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {text.value.decode() if text.value else code}")
