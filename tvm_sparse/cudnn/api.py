"""The functions of cuDNN's C library that a convolution needs, with their types and numbers.

They are those of cuDNN 9's reference: "cudnn_ops" and "cudnn_cnn", which NVIDIA calls deprecated and every cuDNN 9
exports, and of "cudnn_graph", which `graph` calls, what lets a kernel be chosen. They need no package besides the
library: nvidia-cudnn-frontend would be one more to install, and its newer versions require others.

Descriptors and handles are integers, and so are addresses on the GPU. They are made once and live as long as the
process: to destroy a handle waits for the GPU.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.cudnn.library import Library

TYPES = {FLOAT32: 0, FLOAT16: 2, BFLOAT16: 9}
_FLOAT, _CROSS_CORRELATION, _PROPAGATE_NAN = TYPES[FLOAT32], 1, 1
# Math types: the default lets float32 be rounded to TF32 for the tensor cores, the last computes in float32 only; the
# other allows tensor cores for the types that tensors have.
_MATH = {"tf32": 0, "tensor_cores": 1, "float32": 3}
_FORMATS = {"nchw": 0, "nhwc": 1}
RELU, CLIPPED_RELU, IDENTITY = 1, 3, 5
_ADDRESS, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_INTS = ctypes.POINTER(_INT)
# Axes of a tensor of maps; others take the functions for any number of axes.
_MAPS = 4
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (_ADDRESS,),
    "cudnnSetStream": (_ADDRESS, _ADDRESS),
    "cudnnCreateTensorDescriptor": (_ADDRESS,),
    "cudnnSetTensor4dDescriptorEx": (_ADDRESS, *[_INT] * 9),
    "cudnnSetTensorNdDescriptor": (_ADDRESS, _INT, _INT, _INTS, _INTS),
    "cudnnCreateFilterDescriptor": (_ADDRESS,),
    "cudnnSetFilter4dDescriptor": (_ADDRESS, *[_INT] * 6),
    "cudnnSetFilterNdDescriptor": (_ADDRESS, _INT, _INT, _INT, _INTS),
    "cudnnCreateConvolutionDescriptor": (_ADDRESS,),
    "cudnnSetConvolution2dDescriptor": (_ADDRESS, *[_INT] * 8),
    "cudnnSetConvolutionNdDescriptor": (_ADDRESS, _INT, _INTS, _INTS, _INTS, _INT, _INT),
    "cudnnSetConvolutionMathType": (_ADDRESS, _INT),
    "cudnnSetConvolutionGroupCount": (_ADDRESS, _INT),
    "cudnnCreateActivationDescriptor": (_ADDRESS,),
    "cudnnSetActivationDescriptor": (_ADDRESS, _INT, _INT, ctypes.c_double),
    "cudnnGetConvolutionForwardWorkspaceSize": (*[_ADDRESS] * 5, _INT, _ADDRESS),
    "cudnnSetTensor": (_ADDRESS,) * 4,
    "cudnnTransformTensor": (_ADDRESS,) * 7,
    "cudnnAddTensor": (_ADDRESS,) * 7,
    "cudnnActivationForward": (_ADDRESS,) * 8,
    "cudnnConvolutionForward": (*[_ADDRESS] * 7, _INT, _ADDRESS, _SIZE, *[_ADDRESS] * 3),
    "cudnnConvolutionBiasActivationForward": (*[_ADDRESS] * 7, _INT, _ADDRESS, _SIZE, *[_ADDRESS] * 8),
    "cudnnBackendCreateDescriptor": (_INT, _ADDRESS),
    "cudnnBackendDestroyDescriptor": (_ADDRESS,),
    "cudnnBackendSetAttribute": (_ADDRESS, _INT, _INT, ctypes.c_int64, _ADDRESS),
    "cudnnBackendGetAttribute": (_ADDRESS, _INT, _INT, ctypes.c_int64, _ADDRESS, _ADDRESS),
    "cudnnBackendFinalize": (_ADDRESS,),
    "cudnnBackendExecute": (_ADDRESS,) * 3,
}


class CudnnError(RuntimeError):
    """A function of cuDNN failed; the message has its name, the status' name and what cuDNN says more."""


class Cudnn:
    """One library's functions; CudnnError from each method where its call fails."""

    def __init__(self, library: Library):
        self.version = library.version
        self._functions = library.functions
        self._functions.cudnnGetErrorString.restype = ctypes.c_char_p
        for name, types in _FUNCTIONS.items():
            getattr(self._functions, name).argtypes = types

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function."""
        status = getattr(self._functions, name)(*arguments)
        if status:
            more = ctypes.create_string_buffer(256)
            self._functions.cudnnGetLastErrorString(more, _SIZE(len(more)))
            text = " ".join(more.value.decode(errors="replace").split())
            said = self._functions.cudnnGetErrorString(status).decode()
            raise CudnnError(f"{name}: {said}" + (f" ({text})" if text else ""))

    def create_handle(self) -> int:
        """A handle for the GPU that is current on the calling thread."""
        return self._created("cudnnCreate")

    def tensor(self, shape: Sequence[int], strides: Sequence[int], dtype: str = FLOAT32) -> int:
        """A tensor (N, C, H, W), or (N, C, D, H, W), whose elements lie so many elements apart."""
        descriptor = self._created("cudnnCreateTensorDescriptor")
        if len(shape) == _MAPS:
            self.call("cudnnSetTensor4dDescriptorEx", descriptor, TYPES[dtype], *shape, *strides)
        else:
            sizes = (len(shape), _ints(shape), _ints(strides))
            self.call("cudnnSetTensorNdDescriptor", descriptor, TYPES[dtype], *sizes)
        return descriptor

    def filters(self, shape: Sequence[int], layout: str, dtype: str = FLOAT32) -> int:
        """A weight (K, C / groups, R, S), in memory so or, for ``nhwc``, (K, R, S, C / groups).

        Of volumes (K, C / groups, T, R, S), or (K, T, R, S, C / groups).
        """
        descriptor = self._created("cudnnCreateFilterDescriptor")
        kind = (TYPES[dtype], _FORMATS[layout])
        if len(shape) == _MAPS:
            self.call("cudnnSetFilter4dDescriptor", descriptor, *kind, *shape)
        else:
            self.call("cudnnSetFilterNdDescriptor", descriptor, *kind, len(shape), _ints(shape))
        return descriptor

    def convolution(
        self,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        math: str,
    ) -> int:
        """A convolution that accumulates in float32, along rows and columns or along depths too.

        `math` is a key of `_MATH`.
        """
        descriptor = self._created("cudnnCreateConvolutionDescriptor")
        kind = (_CROSS_CORRELATION, _FLOAT)
        if len(padding) == _MAPS - 2:
            self.call("cudnnSetConvolution2dDescriptor", descriptor, *padding, *stride, *dilation, *kind)
        else:
            sizes = (len(padding), *map(_ints, (padding, stride, dilation)))
            self.call("cudnnSetConvolutionNdDescriptor", descriptor, *sizes, *kind)
        self.call("cudnnSetConvolutionMathType", descriptor, _MATH[math])
        self.call("cudnnSetConvolutionGroupCount", descriptor, groups)
        return descriptor

    def activation(self, mode: int, most: float = 0.0) -> int:
        """`RELU`, `CLIPPED_RELU` at `most`, or `IDENTITY`; NaN stays NaN."""
        descriptor = self._created("cudnnCreateActivationDescriptor")
        self.call("cudnnSetActivationDescriptor", descriptor, mode, _PROPAGATE_NAN, most)
        return descriptor

    def workspace_bytes(self, handle: int, x: int, weight: int, convolution: int, y: int, algorithm: int) -> int:
        """What an algorithm needs for a convolution, by its descriptors, on the GPU of `handle`."""
        size = _SIZE()
        descriptors = (x, weight, convolution, y, algorithm)
        self.call("cudnnGetConvolutionForwardWorkspaceSize", handle, *descriptors, ctypes.byref(size))
        return size.value

    def _created(self, name: str) -> int:
        made = _ADDRESS()
        self.call(name, ctypes.byref(made))
        return made.value or 0


def _ints(values: Sequence[int]) -> Any:
    return (_INT * len(values))(*values)
