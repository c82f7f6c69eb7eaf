"""How a depthwise convolution is cut into threads, and its weight packed for them (codegen/cuda/depthwise.cu)."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import stored
from tvm_sparse.scheduling.cuda.library.kernel_library import OF_TYPE

# Channels of a thread, and threads of a block.
GROUP, THREADS = 8, 128
# Rows and columns of taps, and the stride of both -> how many pixels a thread may have, as registers allow.
COLUMNS = {(3, 1): (1, 2, 4), (3, 2): (1, 2), (5, 1): (1, 2), (5, 2): (1, 2)}


@dataclass(frozen=True)
class DepthwiseTiling:
    """A thread has 8 channels of `columns` pixels of a row; tensors lie in NHWC if `nhwc`.

    Inputs are no larger than `most`: what is above counts as that.
    """

    spec: ConvSpec
    columns: int
    nhwc: bool = False
    most: float = math.inf

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""."""
        if self.columns not in COLUMNS.get((self.spec.r, self.spec.stride[0]), ()):
            return f"no kernel has {self.columns} pixels of {self.spec.r}x{self.spec.s} taps"
        return ""

    @property
    def groups(self) -> int:
        """Of 8 channels."""
        return self.spec.c // GROUP

    @property
    def parts(self) -> int:
        """Threads that share a row of pixels."""
        return math.ceil(self.spec.out_w / self.columns)

    @property
    def blocks(self) -> int:
        """That compute all of it."""
        return math.ceil(self.spec.n * self.spec.out_h * self.parts * self.groups / THREADS)

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return kernel_name(self.spec.r, self.spec.stride[0], self.columns, self.spec.dtype)

    def in_layout(self, shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """`shape`, (N, C, H, W), as the kernel has it."""
        n, c, h, w = shape
        return (n, h, w, c) if self.nhwc else shape


def kernel_name(size: int, stride: int, columns: int, dtype: str) -> str:
    """The kernel for so many rows of taps and so many pixels a thread."""
    return f"tvm_sparse_depthwise_{size}_{stride}_{columns}{OF_TYPE[dtype]}"


def packed(weight: np.ndarray, dtype: str) -> np.ndarray:
    """A weight (C, 1, R, S) as int32 (units, 1, 4), 16 bytes a unit: of 8 channels tap after tap."""
    taps = weight.reshape(-1, GROUP, weight.shape[2] * weight.shape[3]).transpose(0, 2, 1)
    return np.ascontiguousarray(stored(taps, dtype)).reshape(-1).view(np.int32).reshape(-1, 1, 4)
