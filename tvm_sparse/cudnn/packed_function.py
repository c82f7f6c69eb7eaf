"""Convolutions by cuDNN as a function that compiled code calls by its name."""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import tvm_ffi

from tvm_sparse.cudnn import library
from tvm_sparse.cudnn.api import Cudnn, CudnnError
from tvm_sparse.cudnn.convolution import Convolution
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.errors import BuildError

# Its arguments are the arrays that `Plan.arguments` names, then the plan as text.
NAME = "tvm_sparse.cudnn_convolution"


@cache
def register() -> None:
    """Give TVM the function `NAME`. cuDNN is looked for when it is first called."""
    tvm_ffi.register_global_func(NAME, CudnnConvolution(lambda: Cudnn(library.load())), override=True)


class CudnnConvolution:
    """Launches convolutions on the stream that TVM considers current, from any thread.

    A GPU's handle and a convolution's descriptors are made by its first call, which must not be captured in a CUDA
    graph; memory is not allocated at all.
    """

    def __init__(self, load: Callable[[], Cudnn]):
        self._load = load
        self._cudnn: Cudnn | None = None
        # cuDNN lets one thread at a time use a handle.
        self._lock = threading.Lock()
        self._handles: dict[int, int] = {}
        self._convolutions: dict[tuple[str, int], tuple[Convolution, tuple[str, ...]]] = {}

    def __call__(self, *arguments: Any) -> None:
        """Launch one convolution.

        Raises
        ------
        BuildError
            There is no cuDNN, or it does not compute this convolution.
        """
        *arrays, text = arguments
        device = arrays[0].device
        addresses = [array.data_ptr() for array in arrays]
        stream = tvm_ffi.get_raw_stream(device)
        with self._lock:
            key = (text, device.index)
            if key not in self._convolutions:
                self._convolutions[key] = self._prepared(Plan.from_text(text), device.index)
            convolution, names = self._convolutions[key]
            convolution(stream, dict(zip(names, addresses, strict=True)))

    def _prepared(self, plan: Plan, device: int) -> tuple[Convolution, tuple[str, ...]]:
        """With what is shared; TVM has made the GPU current on this thread."""
        if self._cudnn is None:
            self._cudnn = self._load()
        if device not in self._handles:
            try:
                self._handles[device] = self._cudnn.create_handle()
            except CudnnError as error:
                hint = "see nvidia-smi for what the GPU does, and tvm-sparse doctor for what is installed"
                problem = f"version {self._cudnn.version} cannot use the GPU, {error}"
                raise BuildError("cuDNN", problem, hint=hint) from error
        return Convolution(self._cudnn, self._handles[device], plan), plan.arguments
