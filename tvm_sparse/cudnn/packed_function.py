"""cuDNN as functions that compiled code calls by their names."""

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

import tvm_ffi

from tvm_sparse.cudnn import library
from tvm_sparse.cudnn.api import Cudnn, CudnnError
from tvm_sparse.cudnn.convolution import Convolution
from tvm_sparse.cudnn.layout_change import LayoutChange, Transposition
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.errors import BuildError, typed

# Their arguments are the arrays that `Plan.arguments` or `LayoutChange.arguments` names, then that as text.
CONVOLUTION, LAYOUT_CHANGE = "tvm_sparse.cudnn_convolution", "tvm_sparse.cudnn_layout_change"


@cache
def register() -> None:
    """Give TVM the functions `CONVOLUTION` and `LAYOUT_CHANGE`. cuDNN is looked for when one is first called."""
    calls = CudnnCalls(lambda: Cudnn(library.load()))
    tvm_ffi.register_global_func(CONVOLUTION, calls.convolution, override=True)
    tvm_ffi.register_global_func(LAYOUT_CHANGE, calls.layout_change, override=True)


class _Work(Protocol):
    """A `Convolution` or a `Transposition`."""

    def __call__(self, stream: int, addresses: Mapping[str, int]) -> None: ...


class CudnnCalls:
    """Launches work on the stream that TVM considers current, from any thread.

    A GPU's handle and the descriptors of what is called are made by its first call, which must not be captured in a
    CUDA graph; memory is not allocated at all.
    """

    def __init__(self, load: Callable[[], Cudnn]):
        self._load = load
        self._cudnn: Cudnn | None = None
        # cuDNN lets one thread at a time use a handle.
        self._lock = threading.Lock()
        self._handles: dict[int, int] = {}
        self._made: dict[tuple[str, int], tuple[_Work, tuple[str, ...]]] = {}

    def convolution(self, *arguments: Any) -> None:
        """Launch one convolution; BuildError where there is no cuDNN, or it does not compute this convolution."""
        self._launch(arguments, self._convolution)

    def layout_change(self, *arguments: Any) -> None:
        """Launch one copy of a tensor in another layout; BuildError where there is no cuDNN, or it fails."""
        self._launch(arguments, self._transposition)

    def _launch(self, arguments: Any, make: Callable[[str, int], tuple[_Work, tuple[str, ...]]]) -> None:
        *arrays, text = arguments
        device = arrays[0].device
        addresses = [array.data_ptr() for array in arrays]
        stream = tvm_ffi.get_raw_stream(device)
        with self._lock:
            key = (text, device.index)
            if key not in self._made:
                self._made[key] = make(text, device.index)
            work, names = self._made[key]
            work(stream, dict(zip(names, addresses, strict=True)))

    def _convolution(self, text: str, device: int) -> tuple[_Work, tuple[str, ...]]:
        plan = Plan.from_text(text)
        return Convolution(*self._shared(device), plan), plan.arguments

    def _transposition(self, text: str, device: int) -> tuple[_Work, tuple[str, ...]]:
        change = LayoutChange.from_text(text)
        return Transposition(*self._shared(device), change), change.arguments

    def _shared(self, device: int) -> tuple[Cudnn, int]:
        """The library and a GPU's handle; TVM has made the GPU current on this thread."""
        if self._cudnn is None:
            self._cudnn = self._load()
        if device not in self._handles:
            try:
                self._handles[device] = self._cudnn.create_handle()
            except CudnnError as error:
                hint = f"see nvidia-smi for what the GPU does, and {typed('doctor')} for what is installed"
                problem = f"version {self._cudnn.version} cannot use the GPU, {error}"
                raise BuildError("cuDNN", problem, hint=hint) from error
        return self._cudnn, self._handles[device]
