"""A CUDA driver whose GPU is the CPU: what is put on its streams runs later, in any order that CUDA allows.

Stands for ``libcuda.so.1`` in `CudaDriver`. Addresses are the CPU's. A kernel is a function that `FakeCuda.kernel`
registers with TVM, for Relax modules to call by ``R.call_dps_packed``; it goes to the stream that TVM considers
current.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable

import numpy as np
import tvm_ffi

NAMES = {2: "CUDA_ERROR_OUT_OF_MEMORY", 214: "CUDA_ERROR_ECC_UNCORRECTABLE", 700: "CUDA_ERROR_ILLEGAL_ADDRESS"}
NAMES |= {400: "CUDA_ERROR_INVALID_HANDLE", 901: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}
DEVICE = tvm_ffi.device("cuda", 0)


def value(argument):
    """What a `ctypes` argument holds."""
    return getattr(argument, "value", argument) or 0


class FakeCuda:
    """The driver's functions; every one checks that its handles live and that the thread has a context.

    `calls` counts them by name, `codes` maps names of functions that shall fail to the code that they return, and
    `alive` has the handles that were not destroyed, by kind. `kept` are tensors that nobody may free before work on
    them has run: the CPU's memory does not wait for streams.
    """

    def __init__(self):
        self.calls, self.codes = Counter(), {}
        self.alive, self.kept = defaultdict(set), []
        self.capturing, self.spoilt = {}, set()
        # Of a stream that is being captured: what each piece of its work runs after, and what its next one will.
        self._parents, self._ends = defaultdict(list), {}
        self._handles = itertools.count(0x1000)
        self._queues, self._graphs = defaultdict(deque), {}
        self._recorded, self._happened = Counter(), Counter()
        self._lock, self._thread = threading.RLock(), threading.local()

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(self, f"_{name.removesuffix('_v2')}")

        def call(*arguments):
            with self._lock:
                self.calls[name] += 1
                needs_context = name not in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2")
                assert not needs_context or self.depth or name == "cuGetErrorName", f"{name} without a context"
                return self.codes[name] if name in self.codes else function(*arguments) or 0

        return call

    @property
    def depth(self):
        """Contexts that the calling thread has pushed."""
        return getattr(self._thread, "depth", 0)

    @property
    def mode(self):
        """The calling thread's capture mode; 0, global, by default."""
        return getattr(self._thread, "mode", 0)

    # What tests use.

    def kernel(self, name, body: Callable[..., None]):
        """Register `body`, which gets the arrays of a launch as NumPy views, as a kernel."""

        def launch(*tensors):
            places = [(tensor.data_ptr(), tuple(tensor.shape)) for tensor in tensors]
            self.enqueue(tvm_ffi.get_raw_stream(DEVICE), lambda: body(*(array_at(*place) for place in places)))

        tvm_ffi.register_global_func(name, launch, override=True)

    def enqueue(self, stream, work):
        """Put a function on a stream, or into the graph that it is being captured into."""
        with self._lock:
            if stream in self.capturing:
                self._parents[stream].append(self._ends.get(stream, []))
                self._ends[stream] = [len(self.capturing[stream])]
                self.capturing[stream].append(work)
            else:
                self._queues[stream].append(("run", work))

    def run(self, seed=0):
        """Run all that is on the streams, in a random order that their events allow."""
        rng = np.random.default_rng(seed)
        while True:
            ready = [queue for queue in self._queues.values() if queue and self._is_ready(queue[0])]
            if not ready:
                assert not any(self._queues.values()), "the streams wait for each other"
                self.kept.clear()
                return
            kind, *rest = ready[rng.integers(len(ready))].popleft()
            if kind == "run":
                rest[0]()
            elif kind == "record":
                event, count = rest
                self._happened[event] = max(self._happened[event], count)

    def _is_ready(self, work):
        return work[0] != "wait" or self._happened[work[1]] >= work[2]

    def new_stream(self):
        """A stream of the caller's."""
        return next(self._handles)

    def begin_capture(self, stream):
        """Capture as torch does, beginning on the caller's own."""
        self.capturing[stream] = []

    def parents(self, stream):
        """What each piece of the work captured so far runs after."""
        return self._parents[stream]

    def end_capture(self, stream):
        """The captured work, as functions, in an order that its dependencies allow: the latest that can comes first."""
        work, parents, order = self.capturing.pop(stream), self._parents.pop(stream, []), []
        ends = self._ends.pop(stream, [])
        while len(order) < len(work):
            ready = [i for i in range(len(work)) if i not in order and set(parents[i]) <= set(order)]
            order.append(ready[-1])
        followed = {each for some in (*parents, ends) for each in some}
        assert followed == set(range(len(work))), "work that nothing waits for"
        return [work[each] for each in order]

    # The driver.

    def _create(self, kind, pointer):
        handle = next(self._handles)
        self.alive[kind].add(handle)
        pointer._obj.value = handle
        return handle

    def _destroy(self, kind, handle):
        if value(handle) not in self.alive[kind]:
            return 400
        self.alive[kind].remove(value(handle))
        return 0

    def _cuGetErrorName(self, code, pointer):
        pointer._obj.value = NAMES[code].encode()

    def _cuInit(self, _flags):
        pass

    def _cuDeviceGet(self, pointer, index):
        pointer._obj.value = index

    def _cuDevicePrimaryCtxRetain(self, pointer, _device):
        pointer._obj.value = 0xC0

    def _cuCtxPushCurrent(self, _context):
        self._thread.depth = self.depth + 1

    def _cuCtxPopCurrent(self, _pointer):
        self._thread.depth = self.depth - 1

    def _cuThreadExchangeStreamCaptureMode(self, pointer):
        mode, self._thread.mode = self.mode, pointer._obj.value
        pointer._obj.value = mode

    def _cuStreamCreate(self, pointer, flags):
        assert flags == 1, "a stream that waits for the default one"
        self._create("stream", pointer)

    def _cuStreamDestroy(self, stream):
        return self._destroy("stream", stream)

    def _cuEventCreate(self, pointer, _flags):
        self._create("event", pointer)

    def _cuEventDestroy(self, event):
        return self._destroy("event", event)

    def _cuEventRecord(self, event, stream):
        if value(event) not in self.alive["event"]:
            return 400
        self._recorded[value(event)] += 1
        self._queues[value(stream)].append(("record", value(event), self._recorded[value(event)]))
        return 0

    def _cuStreamWaitEvent(self, stream, event, _flags):
        self._queues[value(stream)].append(("wait", value(event), self._recorded[value(event)]))

    def _cuEventSynchronize(self, event):
        self.run()
        assert self._happened[value(event)] == self._recorded[value(event)]

    def _cuMemcpyDtoDAsync(self, to, source, size_bytes, stream):
        self.enqueue(value(stream), lambda: ctypes.memmove(value(to), value(source), value(size_bytes)) and None)

    def _cuStreamIsCapturing(self, stream, pointer):
        pointer._obj.value = int(value(stream) in self.capturing)

    def _cuStreamBeginCapture(self, stream, mode):
        assert (mode, self.mode) == (2, 2), "another thread's capture would forbid this one to allocate"
        self.begin_capture(value(stream))

    def _cuStreamGetCaptureInfo_v3(self, stream, _status, _number, _graph, nodes, _kinds, count):
        ends = self._ends.get(value(stream), [])
        # The driver keeps them. A handle is not 0.
        self._found = (ctypes.c_void_p * len(ends))(*(each + 1 for each in ends))
        ctypes.c_void_p.from_buffer(nodes._obj).value = ctypes.addressof(self._found)
        count._obj.value = len(ends)

    def _cuStreamUpdateCaptureDependencies(self, stream, nodes, _kinds, count, flags):
        assert flags.value == 1, "work would run after others too"
        self._ends[value(stream)] = [each - 1 for each in nodes[: value(count)]]

    def _cuStreamEndCapture(self, stream, pointer):
        work = self.end_capture(value(stream))
        if value(stream) in self.spoilt:
            return 901
        self._graphs[self._create("graph", pointer)] = work
        return 0

    def _cuGraphInstantiateWithFlags(self, pointer, graph, _flags):
        self._graphs[self._create("executable", pointer)] = self._graphs[value(graph)]

    def _cuGraphDestroy(self, graph):
        return self._destroy("graph", graph)

    def _cuGraphLaunch(self, executable, stream):
        if value(executable) not in self.alive["executable"]:
            return 400
        for work in self._graphs[value(executable)]:
            self.enqueue(value(stream), work)
        return 0

    def _cuGraphExecDestroy(self, executable):
        return self._destroy("executable", executable)


def array_at(address, shape):
    """The float32 array (shape) at an address."""
    size = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * size).from_address(address)).reshape(shape)
