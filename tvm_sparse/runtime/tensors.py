"""What the runtime needs to know of a tensor that belongs to torch, NumPy or another library that speaks DLPack.

Everything here takes constant time, but for `aligned_copy`.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import tvm
import tvm_ffi

from tvm_sparse.errors import InputError

# Bytes; compiled code loads whole vectors, and on a misaligned address that ends the process.
ALIGNMENT = 64


class Layout(NamedTuple):
    """Shape, element type and place of a tensor; `device` reads like ``cpu:0``.

    `obstacle` says why its memory cannot be read at all; the rest means nothing then.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    is_contiguous: bool
    is_aligned: bool
    obstacle: str = ""


class Library(Protocol):
    """One tensor library.

    With `allocates_in_graphs`, what `empty` returns while a CUDA graph is recorded lives as long as that graph.
    """

    allocates_in_graphs: bool

    def layout(self, value: Any) -> Layout:
        """Describe `value`."""

    def aligned_copy(self, value: Any) -> Any:
        """The same elements, contiguous and aligned, as something TVM takes."""

    def borrow(self, value: Any) -> Any:
        """A contiguous aligned `value` as something TVM takes, without a copy."""

    def give_back(self, result: Any) -> Any:
        """A result of TVM in the library's own type, without a copy."""

    def stream(self, device: Any) -> int:
        """The CUDA stream that the caller's work goes to."""

    def empty(self, shape: Sequence[int], dtype: str, device: Any) -> Any:
        """New memory on `device`; work on `stream` may write to it at once."""


class _OfTvm:
    """Where TVM's own stream and memory are used."""

    allocates_in_graphs = False

    def stream(self, device: Any) -> int:
        return tvm_ffi.get_raw_stream(device) or 0

    def empty(self, shape: Sequence[int], dtype: str, device: Any) -> Any:
        return tvm.runtime.empty(shape, dtype, device)


class Torch:
    """`torch.Tensor`. TVM takes it as it is, runs on torch's current stream and returns torch tensors."""

    allocates_in_graphs = True

    def layout(self, value: Any) -> Layout:
        obstacle, address = _torch_memory(value)
        if obstacle:
            return Layout((), "", "", False, False, obstacle)
        device = value.device
        # A tensor with the lazy negative bit holds other bytes than it stands for.
        contiguous = value.is_contiguous() and not value.is_neg()
        dtype = str(value.dtype).removeprefix("torch.")
        name = f"{device.type}:{device.index or 0}"
        return Layout(tuple(value.shape), dtype, name, contiguous, address % ALIGNMENT == 0)

    def aligned_copy(self, value: Any) -> Any:
        return value.detach().resolve_neg().clone(memory_format=sys.modules["torch"].contiguous_format)

    def borrow(self, value: Any) -> Any:
        return value

    def give_back(self, result: Any) -> Any:
        torch = sys.modules["torch"]
        return result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)

    def stream(self, device: Any) -> int:
        return sys.modules["torch"].cuda.current_stream(device.index).cuda_stream

    def empty(self, shape: Sequence[int], dtype: str, device: Any) -> Any:
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=f"{device.type}:{device.index}")


def _torch_memory(value: Any) -> tuple[str, int]:
    """Why the elements of a torch tensor do not lie in memory, and where they begin."""
    if value.is_nested or value.layout is not sys.modules["torch"].strided:
        return f"it is {'nested' if value.is_nested else str(value.layout).removeprefix('torch.')}, not strided", 0
    if value.is_meta:
        return "it is on the meta device", 0
    try:
        address = value.data_ptr()
    except RuntimeError:
        address = 0
    # Fake, functional and vmapped tensors stand for others; a storage may also have been freed.
    return "" if address or not value.numel() else "it has no memory of its own", address


class NumPy(_OfTvm):
    """`numpy.ndarray`. NumPy promises no alignment, so small arrays are mostly copied."""

    def layout(self, value: np.ndarray) -> Layout:
        address = value.__array_interface__["data"][0]
        # DLPack does not hand out read-only memory, nor NumPy's bfloat16.
        flags, dtype = value.flags, value.dtype
        borrowable = flags.c_contiguous and flags.writeable and dtype.kind != "V"
        return Layout(value.shape, _name_of(dtype), "cpu:0", borrowable, address % ALIGNMENT == 0)

    def aligned_copy(self, value: np.ndarray) -> Any:
        if value.dtype.kind == "V":
            return tvm.runtime.empty(value.shape, str(value.dtype)).copyfrom(value)
        # TVM takes three times as long for a small one, and views of views twice.
        memory = np.empty(value.nbytes + ALIGNMENT, np.uint8)
        begin = -tvm_ffi.from_dlpack(memory).data_ptr() % ALIGNMENT
        own: np.ndarray = np.ndarray(value.shape, value.dtype, memory, begin)
        own[...] = value
        return tvm_ffi.from_dlpack(own)

    def borrow(self, value: np.ndarray) -> Any:
        return tvm_ffi.from_dlpack(value)

    def give_back(self, result: Any) -> np.ndarray:
        return result.numpy() if str(result.dtype) == "bfloat16" else np.from_dlpack(result)


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype) -> str:
    # NumPy makes the name anew each time, which takes as long as to run a small layer.
    return dtype.name if dtype.isnative else f"{dtype.name} of foreign byte order"


class DLPack(_OfTvm):
    """Any other type with ``__dlpack__``; results are of its type where it follows the array API, else TVM's."""

    def __init__(self, value: Any):
        self.namespace = value.__array_namespace__() if hasattr(value, "__array_namespace__") else None

    def layout(self, value: Any) -> Layout:
        tensor = tvm_ffi.from_dlpack(value)
        device = f"{tensor.device.type}:{tensor.device.index}"
        aligned = tensor.data_ptr() % ALIGNMENT == 0
        return Layout(tuple(tensor.shape), str(tensor.dtype), device, tensor.is_contiguous(), aligned)

    def aligned_copy(self, value: Any) -> Any:
        tensor = tvm_ffi.from_dlpack(value)
        if not tensor.is_contiguous():
            # Reads strides, which TVM's own copy does not; only the CPU's memory can be read like this.
            return NumPy().aligned_copy(np.from_dlpack(value))
        # TVM copies on the default stream, which waits for no other.
        tensor.device.sync(self.stream(tensor.device))
        copy = tvm.runtime.empty(tuple(tensor.shape), str(tensor.dtype), tensor.device).copyfrom(tensor)
        tensor.device.sync()
        return copy

    def borrow(self, value: Any) -> Any:
        return tvm_ffi.from_dlpack(value)

    def give_back(self, result: Any) -> Any:
        return self.namespace.from_dlpack(result) if self.namespace is not None else result


def library_of(name: str, value: Any) -> Library:
    """The library that `value`, the input `name`, belongs to; InputError where it is no tensor."""
    if isinstance(value, np.ndarray):
        return NumPy()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return Torch()
    if hasattr(value, "__dlpack__"):
        return DLPack(value)
    found, allowed = type(value).__name__, "torch.Tensor, numpy.ndarray or a DLPack tensor"
    raise InputError(f"input {name}", "this is no tensor", found, allowed)
