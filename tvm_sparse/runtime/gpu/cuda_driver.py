"""The calls of the CUDA driver that record work in graphs and replay it; neither torch nor the CUDA toolkit is needed.

Handles of streams, events and graphs are integers, and so are addresses on the GPU. Names and numbers are those of
NVIDIA's CUDA driver API reference.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

_NON_BLOCKING_STREAM, _EVENT_WITHOUT_TIME, _RECORD_AS_NODE = 1, 2, 1
_RELAXED_CAPTURE, _SET_DEPENDENCIES = 2, 1
_NOT_CAPTURING = 0


class DriverError(RuntimeError):
    """A call of the driver failed; the message names the call and the failure, as ``CUDA_ERROR_OUT_OF_MEMORY``."""


class CudaDriver:
    """The driver.

    OSError where there is no driver. DriverError where a call failed; from each method.

    * `library`: what has its functions, called with `ctypes` values; by default the driver itself.
    """

    def __init__(self, library: Any = None):
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library
        self._contexts: dict[int, ctypes.c_void_p] = {}

    @contextmanager
    def use_device(self, index: int) -> Iterator[None]:
        """Make the context that TVM and torch share on a GPU the calling thread's, which may have none or another."""
        if index not in self._contexts:
            context, device = ctypes.c_void_p(), ctypes.c_int()
            self._call("cuInit", 0)
            self._call("cuDeviceGet", ctypes.byref(device), index)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[index] = context
        self._call("cuCtxPushCurrent_v2", self._contexts[index])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def create_stream(self) -> int:
        """A stream that does not wait for the default one."""
        return self._created("cuStreamCreate", _NON_BLOCKING_STREAM)

    def destroy_stream(self, stream: int) -> None:
        """Free a stream; its work goes on."""
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def synchronize_stream(self, stream: int) -> None:
        """Wait until all that is on the stream has run."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def create_event(self, is_timed: bool = False) -> int:
        """An event; one that also tells the time costs the GPU more."""
        return self._created("cuEventCreate", 0 if is_timed else _EVENT_WITHOUT_TIME)

    def destroy_event(self, event: int) -> None:
        """Free an event."""
        self._call("cuEventDestroy_v2", ctypes.c_void_p(event))

    def record_event(self, event: int, stream: int, as_node: bool = False) -> None:
        """Have the event happen when all that is on the stream now has run; `as_node`: in each replay of a graph."""
        handles = ctypes.c_void_p(event), ctypes.c_void_p(stream)
        if as_node:
            self._call("cuEventRecordWithFlags", *handles, _RECORD_AS_NODE)
        else:
            self._call("cuEventRecord", *handles)

    def elapsed_us(self, start: int, end: int) -> float:
        """Time between two events that tell it."""
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), ctypes.c_void_p(start), ctypes.c_void_p(end))
        return milliseconds.value * 1e3

    def wait_event(self, stream: int, event: int) -> None:
        """Let what comes to the stream run only after the event, as it was last recorded; at once if never."""
        self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), 0)

    def synchronize_event(self, event: int) -> None:
        """Wait until the event has happened."""
        self._call("cuEventSynchronize", ctypes.c_void_p(event))

    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        """Copy on the GPU, on the stream."""
        arguments = (ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size_bytes))
        self._call("cuMemcpyDtoDAsync_v2", *arguments, ctypes.c_void_p(stream))

    def is_capturing(self, stream: int) -> bool:
        """Whether work that comes to the stream is recorded in a graph; never on the default stream, 0."""
        if not stream:
            return False
        status = ctypes.c_int()
        self._call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
        return status.value != _NOT_CAPTURING

    @contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """Let this thread allocate and load code while another thread records a graph, which forbids it by default."""
        mode = ctypes.c_int(_RELAXED_CAPTURE)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def begin_capture(self, stream: int) -> None:
        """Record what comes to the stream from now on instead of running it."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), _RELAXED_CAPTURE)

    def end_capture(self, stream: int) -> int:
        """The graph of what came to the stream since `begin_capture`."""
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return graph.value or 0

    def captured(self, stream: int) -> list[int]:
        """The nodes of the graph being recorded after which the stream's next work would run."""
        status, count = ctypes.c_int(), ctypes.c_size_t()
        nodes, kinds = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
        found = (ctypes.byref(each) for each in (nodes, kinds, count))
        self._call("cuStreamGetCaptureInfo_v3", ctypes.c_void_p(stream), ctypes.byref(status), None, None, *found)
        return [nodes[index] or 0 for index in range(count.value)]

    def run_after(self, stream: int, nodes: Sequence[int]) -> None:
        """Record the stream's next work to run after these nodes, and after no others."""
        handles = (ctypes.c_void_p * len(nodes))(*nodes)
        arguments = (handles, None, ctypes.c_size_t(len(nodes)), ctypes.c_uint(_SET_DEPENDENCIES))
        self._call("cuStreamUpdateCaptureDependencies_v2", ctypes.c_void_p(stream), *arguments)

    def instantiate(self, graph: int) -> int:
        """A graph made ready for launches."""
        executable = ctypes.c_void_p()
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), ctypes.c_void_p(graph), ctypes.c_uint64(0))
        return executable.value or 0

    def destroy_graph(self, graph: int) -> None:
        """Free a graph, not what was instantiated from it."""
        self._call("cuGraphDestroy", ctypes.c_void_p(graph))

    def launch(self, executable: int, stream: int) -> None:
        """Run an instantiated graph on the stream, after its own last run."""
        self._call("cuGraphLaunch", ctypes.c_void_p(executable), ctypes.c_void_p(stream))

    def destroy_executable(self, executable: int) -> None:
        """Free an instantiated graph, when it has run."""
        self._call("cuGraphExecDestroy", ctypes.c_void_p(executable))

    def _created(self, name: str, flags: int) -> int:
        handle = ctypes.c_void_p()
        self._call(name, ctypes.byref(handle), flags)
        return handle.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(f"{name}: {text.value.decode() if text.value else code}")


@cache
def cuda_driver() -> CudaDriver:
    """The driver of this process."""
    return CudaDriver()


def forget_error() -> None:
    """Take back the error that TVM's failed call left with CUDA's runtime, which torch would report as its own."""
    # Only where TVM has loaded it; this is the version that TVM is built with.
    with suppress(OSError):
        ctypes.CDLL("libcudart.so.13", mode=os.RTLD_NOLOAD | os.RTLD_NOW).cudaGetLastError()
