"""GpuRunner: calls of one model on an NVIDIA GPU, by CUDA graphs, from any thread and on any stream."""

import os
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import tvm
import tvm_ffi

from tvm_sparse.errors import BuildError, first_line
from tvm_sparse.runtime.cpu.core_shares import CORE_SHARES
from tvm_sparse.runtime.gpu.branches import Branches
from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver, DriverError, cuda_driver, forget_error
from tvm_sparse.runtime.gpu.cuda_graph import CudaGraph
from tvm_sparse.runtime.gpu.gpu_failures import (
    as_sentences,
    gpu_failure,
    is_lost,
    is_out_of_memory,
    keep,
    keep_in_children,
)
from tvm_sparse.runtime.index_checks import as_input_errors
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.runtime.tensors import Library
from tvm_sparse.runtime.workspace import Machine, Workspace

# Sets of input addresses that get a graph of their own. A loop with new tensors sees two or three: allocators return
# what was freed.
MOST_IN_PLACE = 4
# Stands for all other sets of addresses.
_ELSEWHERE: tuple[int, ...] = ()


class _Recording(NamedTuple):
    """A graph, the addresses of its outputs, and of inputs of its own, into which a call's are copied first."""

    # It must not hold the caller's inputs: their memory shall be free for the next ones.
    graph: CudaGraph
    outputs: Sequence[int]
    inputs: Sequence[Any] = ()


class GpuRunner:
    """Runs a model on the caller's stream.

    Each of the first `MOST_IN_PLACE` sets of input addresses gets a graph that reads the inputs where they are. Inputs
    from elsewhere are copied, on the GPU, into those of one more graph. All graphs compute in one workspace, so they
    take turns, also on different streams: a model fills the GPU, and a workspace for each stream would cost more memory
    than it saves time. Outputs are copied from there into new memory of the caller's library.

    On a stream that is being captured every kernel goes into that capture. The workspace is then new memory of the
    caller's library, which keeps it for the captured graph and no longer.

    * `executable`, `device`, `signature`: see `CompiledModel`.
    * `driver`: by default that of the process.
    """

    def __init__(
        self,
        executable: tvm.runtime.Executable | tvm.runtime.Module,
        device: tvm.runtime.Device,
        signature: Signature,
        driver: CudaDriver | None = None,
    ):
        self._executable, self._device, self._signature = executable, device, signature
        self._driver = cuda_driver() if driver is None else driver
        # A signal's handler or a finaliser that interrupts a call may take it again, and finds `_is_calling`.
        self._lock = threading.RLock()
        self._is_calling = False
        self._process = os.getpid()
        keep_in_children(self)
        self._machine: Machine | None = None
        self._workspace = self._new_workspace()
        self._recordings: dict[tuple[int, ...], _Recording] = {}
        # Why the model cannot be recorded, once that is known.
        self.obstacle = ""

    def __call__(self, inputs: Sequence[Any], library: Library, stream: int, cuda_graph: bool = True) -> list[Any]:
        """The outputs for `inputs`, tensors of torch or TVM on the GPU as `signature` says, as tensors of `library`.

        InputError where an assertion of the model fails. BuildError where the GPU is out of memory, or lost to this
        process; or `stream` is being captured, and this is the first call, or `library` keeps no memory for graphs; or
        the calling thread is in a call already.
        """
        with self._lock, as_sentences(), as_input_errors():
            if self._is_calling:
                hint = "call it when the call that was interrupted has returned"
                raise BuildError(
                    "model", "a signal handler or a finaliser called it in the middle of a call", hint=hint
                )
            self._is_calling = True
            try:
                # Of what a call does, TVM's and the caller's library allocate, and first launches load code.
                with self._driver.use_device(self._device.index), self._driver.relaxed_capture():
                    if self._driver.is_capturing(stream):
                        return self._run_captured(inputs, library, stream)
                    try:
                        return self._run(inputs, library, stream, cuda_graph)
                    except Exception as error:
                        self._make_room(error)
                    return self._run(inputs, library, stream, cuda_graph)
            except Exception as error:
                self._forget(error)
                raise
            finally:
                self._is_calling = False

    def require_own_process(self) -> None:
        """Raise BuildError where this process was forked from the one that the runner was made in."""
        if os.getpid() != self._process:
            problem = "it was made for the GPU before a fork, which CUDA does not survive"
            raise BuildError("model", problem, hint="fork before the GPU is used, or start processes with spawn")

    def is_capturing(self, stream: int) -> bool:
        """Whether what is put on `stream` runs later."""
        with self._driver.use_device(self._device.index):
            return self._driver.is_capturing(stream)

    def _run(self, inputs: Sequence[Any], library: Library, stream: int, cuda_graph: bool) -> list[Any]:
        machine = self._set_up() if self._machine is None else self._machine
        specs = self._signature.outputs
        results = [library.empty(spec.shape, spec.dtype, self._device) for spec in specs]
        self._driver.wait_event(stream, self._done)
        try:
            if cuda_graph and not self.obstacle:
                outputs = self._replay(machine, inputs, stream)
            else:
                outputs = _addresses(self._launch(machine, inputs, self._workspace, stream))
            self._copy(outputs, results, specs, stream)
        finally:
            self._driver.record_event(self._done, stream)
        return results

    def _set_up(self) -> Machine:
        # A fork waits for it, and the child finds TVM's table of functions as it was.
        machine = CORE_SHARES.run(1, lambda: Machine(self._executable, self._device))
        # Constants were copied on the default stream, for which others do not wait.
        self._device.sync()
        self._done = self._driver.create_event()
        freed = (self._driver, self._device.index, self._done, self._recordings)
        # When the process ends the driver frees everything.
        weakref.finalize(self, _free, *freed).atexit = False
        self._machine = machine
        return machine

    def _run_captured(self, inputs: Sequence[Any], library: Library, stream: int) -> list[Any]:
        if self._machine is None:
            raise BuildError("model", "its first call cannot go into a CUDA graph", hint="call it once before")
        if not library.allocates_in_graphs:
            hint = "pass torch tensors, or call it outside of the capture"
            raise BuildError("model", "these tensors bring no memory for a CUDA graph", hint=hint)

        def allocate(size_bytes: int) -> Any:
            return tvm_ffi.from_dlpack(library.empty((size_bytes,), "uint8", self._device))

        workspace = Workspace(allocate)
        results = []
        outputs = self._launch(self._machine, inputs, workspace, stream)
        for output, spec in zip(outputs, self._signature.outputs, strict=True):
            if workspace.owns(output):
                results.append(output)
            else:
                results.append(library.empty(spec.shape, spec.dtype, self._device))
                self._copy(_addresses([output]), results[-1:], [spec], stream)
        return results

    def _replay(self, machine: Machine, inputs: Sequence[Any], stream: int) -> Sequence[int]:
        """Addresses of the outputs; inputs at addresses that no graph reads yet are run without, then recorded."""
        addresses = _addresses(inputs)
        recording = self._recordings.get(addresses) or self._recordings.get(_ELSEWHERE)
        if recording is None:
            outputs = _addresses(self._launch(machine, inputs, self._workspace, stream))
            self._record(machine, inputs)
            return outputs
        if recording.inputs:
            self._copy(addresses, recording.inputs, self._signature.inputs, stream)
        recording.graph.launch(stream)
        return recording.outputs

    def _record(self, machine: Machine, inputs: Sequence[Any]) -> None:
        """Record a graph for the addresses of `inputs`; where there are many, one for all others instead."""
        in_place = len(self._recordings) < MOST_IN_PLACE
        try:
            if in_place:
                self._recordings[_addresses(inputs)] = self._recorded(machine, inputs)
            else:
                own = [tvm.runtime.empty(spec.shape, spec.dtype, self._device) for spec in self._signature.inputs]
                self._recordings[_ELSEWHERE] = self._recorded(machine, own)._replace(inputs=own)
        except Exception as error:
            if gpu_failure(error) is not None:
                raise
            forget_error()
            self.obstacle = first_line(error)

    def _recorded(self, machine: Machine, inputs: Sequence[Any]) -> _Recording:
        outputs: list[int] = []

        def call() -> None:
            branches = Branches(self._driver, tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", self._device.index)))
            arguments = [_as_tvm(tensor) for tensor in inputs]
            outputs.extend(_addresses(machine.run(arguments, self._workspace, branches.next_call)))
            branches.join()

        return _Recording(CudaGraph(self._driver, self._device, call), outputs)

    def _launch(self, machine: Machine, inputs: Sequence[Any], workspace: Workspace, stream: int) -> list[Any]:
        """The outputs, each kernel launched by itself."""
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", self._device.index), stream):
            return machine.run([_as_tvm(tensor) for tensor in inputs], workspace)

    def _copy(self, sources: Sequence[int], targets: Sequence[Any], specs: Sequence[TensorSpec], stream: int) -> None:
        for source, target, spec in zip(sources, targets, specs, strict=True):
            if spec.size_bytes:
                self._driver.copy(target.data_ptr(), source, spec.size_bytes, stream)

    def _new_workspace(self) -> Workspace:
        # Without a reference to the runner, which would then be freed late.
        device = self._device
        return Workspace(lambda size_bytes: tvm.runtime.empty((size_bytes,), "uint8", device))

    def _make_room(self, error: Exception) -> None:
        """Have torch free what it keeps for its next tensors, which is out of TVM's reach; raises any other error."""
        torch = sys.modules.get("torch")
        if torch is None or not is_out_of_memory(error):
            raise error
        self._forget(error)
        torch.cuda.empty_cache()

    def _forget(self, error: BaseException) -> None:
        """Leave nothing of a call that failed."""
        forget_error()
        if is_lost(error):
            keep(self)
        elif not self._recordings:
            self._workspace = self._new_workspace()


def _addresses(tensors: Sequence[Any]) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def _as_tvm(tensor: Any) -> Any:
    return tensor if isinstance(tensor, tvm.runtime.Tensor) else tvm_ffi.from_dlpack(tensor.detach())


def _free(driver: CudaDriver, device: int, done: int, recordings: dict[tuple[int, ...], _Recording]) -> None:
    """Free the graphs and the event of a model that is no more, when it has run."""
    # A lost GPU has nothing left to free.
    with suppress(DriverError), driver.use_device(device), driver.relaxed_capture():
        driver.synchronize_event(done)
        for recording in recordings.values():
            recording.graph.close()
        driver.destroy_event(done)
