"""How a convolution of an image, and a pool behind it, is cut for tensor cores (codegen/cuda/first.cu)."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.scheduling.cuda.library.kernel_library import OF_TYPE

# Warps of a block; channels of a pixel in shared memory; filters of a product, and that are written at a time; pixels
# that a warp has at a time; taps of a step.
WARPS, CHANNELS, FILTERS, GROUP, PIXELS, TAPS = 4, 4, 16, 8, 16, 4
# Steps -> times 16 filters of a warp, and blocks that share a multiprocessor, as registers allow.
KERNELS = {3: (2, 3), 7: (2, 3), 13: (2, 3), 31: (1, 2)}


class Pool(NamedTuple):
    """A max pool of square windows, and the size of what it makes of a map."""

    window: int
    stride: int
    padding: int
    size: tuple[int, int]


@dataclass(frozen=True)
class FirstTiling:
    """A block has tiles of `rows` x `columns` outputs, `behind` a pool, one after the other; NHWC if `nhwc`."""

    spec: ConvSpec
    rows: int
    columns: int
    behind: Pool | None = None
    nhwc: bool = False

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""."""
        if self.steps not in KERNELS:
            return f"no kernel has {self.spec.r * self.spec.s} taps"
        return ""

    @property
    def pool(self) -> Pool:
        """The pool behind, or one that changes nothing."""
        return self.behind or Pool(1, 1, 0, (self.spec.out_h, self.spec.out_w))

    @property
    def steps(self) -> int:
        """Of four taps."""
        return math.ceil(self.spec.r * self.spec.s / TAPS)

    @property
    def filter_warps(self) -> int:
        """Warps of a block that have other filters."""
        wanted = math.ceil(self.spec.k / (FILTERS * KERNELS[self.steps][0]))
        return next(each for each in (1, 2, 4) if each >= min(wanted, WARPS))

    @property
    def pixel_warps(self) -> int:
        """Warps of a block that have other pixels."""
        return WARPS // self.filter_warps

    @property
    def groups(self) -> int:
        """Of 8 filters of a block."""
        return self.filter_warps * KERNELS[self.steps][0] * FILTERS // GROUP

    @property
    def filter_tiles(self) -> int:
        """Blocks that have other filters."""
        return math.ceil(self.spec.k / (GROUP * self.groups))

    @property
    def out_size(self) -> tuple[int, int]:
        """Rows and columns of a map of outputs."""
        return self.pool.size

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Images, and tiles below and beside each other."""
        height, width = self.out_size
        return self.spec.n, math.ceil(height / self.rows), math.ceil(width / self.columns)

    @property
    def conv_size(self) -> tuple[int, int]:
        """Rows and columns of a tile of the convolution's outputs."""
        rows, columns = ((each - 1) * self.pool.stride + self.pool.window for each in (self.rows, self.columns))
        return rows, columns

    @property
    def in_size(self) -> tuple[int, int]:
        """Rows and columns of a tile's input."""
        spec, (rows, columns) = self.spec, self.conv_size
        height = (rows - 1) * spec.stride[0] + (spec.r - 1) * spec.dilation[0] + 1
        return height, (columns - 1) * spec.stride[1] + (spec.s - 1) * spec.dilation[1] + 1

    @property
    def turns(self) -> int:
        """Of all pixels of the convolution's outputs, 16 of them each."""
        return math.ceil(math.prod(self.conv_size) / PIXELS)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """Of the outputs as they are written."""
        spec, (height, width) = self.spec, self.out_size
        return (spec.n, height, width, spec.k) if self.nhwc else (spec.n, spec.k, height, width)

    @property
    def pitch(self) -> int:
        """Elements from one pixel's sums to the next one's, 16 bytes more: so neighbours have banks of their own."""
        return (self.groups + 1) * GROUP

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: input and sums."""
        staged = math.prod(self.in_size)
        elements = (staged + staged % 2) * CHANNELS + self.turns * PIXELS * self.pitch
        return STORAGE[self.spec.dtype].size_bytes * elements

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return kernel_name(self.steps, self.spec.dtype)


def kernel_name(steps: int, dtype: str) -> str:
    """The kernel for so many steps."""
    return f"tvm_sparse_first_{steps}{OF_TYPE[dtype]}"
