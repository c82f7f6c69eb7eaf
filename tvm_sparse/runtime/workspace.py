"""The memory in which a model computes, and a virtual machine that takes it from there.

TVM's virtual machine allocates anew in each call, from a pool that all models and threads share. It takes a piece back
when the host has no more use for it, which on a GPU may be before the kernels have run: calls on two streams would
write over each other. And a CUDA graph needs the same addresses in each call.
"""

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

# How many tensors a kernel's call writes, and these, then those that it reads.
OnCall = Callable[[int, Sequence[Any]], None]
_STORAGE, _TENSOR = "vm.builtin.alloc_storage", "vm.builtin.alloc_tensor"
# Comes before each call of a model whose branches may run side by side (compiler/rewriting/side_by_side.py).
NEXT_CALL = "tvm_sparse.next_call"
_ORIGINAL = {name: tvm_ffi.get_global_func(name) for name in (_STORAGE, _TENSOR)}
# Of the virtual machine's devices, the one that the model runs on.
_DEVICE = 0


class _Block:
    """A piece of memory, and the tensors that were made in it."""

    def __init__(self, memory: Any):
        self.memory = memory
        self.tensors: list[Any] = []

    @property
    def is_free(self) -> bool:
        """Whether nobody else holds the memory or a tensor in it."""
        held = _references(self.memory) - len(self.tensors) > 1
        return not held and all(_references(tensor) == 1 for tensor in self.tensors)


class Workspace:
    """Memory for intermediate results and outputs: planned during the first call, the same in all others.

    Within a call, memory that is not needed any more is used again; kernels run in the order of their launches.

    * `allocate`: bytes to a tensor of so many elements, uint8.
    """

    def __init__(self, allocate: Callable[[int], Any]):
        self._allocate = allocate
        self._blocks: dict[int, _Block] = {}
        # What the model asks for during a call, in order.
        self._memory: list[Any] = []
        self._tensors: list[Any] = []
        self.rewind()

    def rewind(self) -> None:
        """Begin a call."""
        self._next_memory = self._next_tensor = 0

    def memory(self, size_bytes: int) -> Any:
        """The next piece of memory that the model asks for."""
        if self._next_memory == len(self._memory):
            fitting = [each for each in self._blocks.values() if each.memory.numel() >= size_bytes and each.is_free]
            block = min(fitting, key=lambda each: each.memory.numel()) if fitting else self._new_block(size_bytes)
            self._memory.append(block.memory)
        self._next_memory += 1
        return self._memory[self._next_memory - 1]

    def tensor(self, memory: Any, offset: int, shape: Sequence[int], dtype: Any) -> Any:
        """The next tensor, `offset` bytes into `memory`."""
        if self._next_tensor == len(self._tensors):
            tensor = memory._create_view(shape, dtype, offset)
            self._blocks[memory.data_ptr()].tensors.append(tensor)
            self._tensors.append(tensor)
        self._next_tensor += 1
        return self._tensors[self._next_tensor - 1]

    def owns(self, tensor: Any) -> bool:
        """Whether a tensor lies here: one that a model returns may also be its input or a constant."""
        return any(0 <= tensor.data_ptr() - start < each.memory.numel() for start, each in self._blocks.items())

    @property
    def size_bytes(self) -> int:
        """Of all its memory."""
        return sum(each.memory.numel() for each in self._blocks.values())

    def _new_block(self, size_bytes: int) -> _Block:
        memory = self._allocate(size_bytes)
        return self._blocks.setdefault(memory.data_ptr(), _Block(memory))


def _references(tensor: Any) -> int:
    """How many hold one of TVM's objects, which begins with their number (``TVMFFIObject`` in tvm_ffi's C API)."""
    return ctypes.c_uint32.from_address(tensor.__chandle__()).value


class _Current(threading.local):
    """The workspace of the call that the calling thread is in, and who wants to know of each kernel's call in it."""

    workspace: Workspace | None = None
    on_call: OnCall | None = None


_CURRENT = _Current()
# TVM's table of functions, which it does not lock itself.
_TABLE = threading.RLock()


def _storage(machine: Any, shape: Sequence[int], device: int, dtype: Any, scope: str) -> Any:
    if _CURRENT.workspace is None or device != _DEVICE:
        return _ORIGINAL[_STORAGE](machine, shape, device, dtype, scope)
    return _CURRENT.workspace.memory(math.prod(shape) * dtype.itemsize)


def _tensor(storage: Any, offset: int, shape: Sequence[int], dtype: Any, *scope: str) -> Any:
    if _CURRENT.workspace is None or not isinstance(storage, tvm.runtime.Tensor):
        return _ORIGINAL[_TENSOR](storage, offset, shape, dtype, *scope)
    return _CURRENT.workspace.tensor(storage, offset, shape, dtype)


def _next_call(outputs: int, *tensors: Any) -> None:
    if _CURRENT.on_call is not None:
        _CURRENT.on_call(outputs, tensors)


def main_of(executable: tvm.runtime.Executable | tvm.runtime.Module, device: tvm.runtime.Device) -> Any:
    """The function ``main`` of `executable`, run by a virtual machine of its own; one thread at a time may call it."""
    module = _module(executable)
    with _TABLE:
        return relax.VirtualMachine(module, device)["main"]


def _module(executable: tvm.runtime.Executable | tvm.runtime.Module) -> tvm.runtime.Module:
    return executable.jit() if isinstance(executable, tvm.runtime.Executable) else executable


class Machine:
    """``main`` of `executable`, taking its memory on `device` from a workspace; one thread at a time may run it."""

    def __init__(self, executable: tvm.runtime.Executable | tvm.runtime.Module, device: tvm.runtime.Device):
        module = _module(executable)
        # A virtual machine looks its functions up when it is made, and keeps them.
        with _TABLE:
            for name, function in ((_STORAGE, _storage), (_TENSOR, _tensor), (NEXT_CALL, _next_call)):
                tvm_ffi.register_global_func(name, function, override=True)
            try:
                self._main = main_of(module, device)
            finally:
                for name, function in _ORIGINAL.items():
                    tvm_ffi.register_global_func(name, function, override=True)

    def run(self, inputs: Sequence[Any], workspace: Workspace, on_call: OnCall | None = None) -> list[Any]:
        """The outputs, which lie in `workspace` or are inputs or constants; the next call writes over them."""
        workspace.rewind()
        _CURRENT.workspace, _CURRENT.on_call = workspace, on_call
        try:
            result = self._main(*inputs)
        finally:
            _CURRENT.workspace = _CURRENT.on_call = None
        return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
