"""Which three convolutions codegen/cuda/bottleneck.cu computes, how they are cut, and how long that takes."""

import math
from typing import Any, NamedTuple

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, is_half
from tvm_sparse.target.gpu import GpuInfo

# As in the C++ file: channels between the layers, and of input and output; columns of a strip, and of what is read for
# one; rows of a step; strips of a block.
NARROW, WIDE = 64, 256
COLUMNS, STAGED, ROWS, STRIPS = 14, 16, 4, 2
THREADS = 128 * (STRIPS + 1)
# Bytes of shared memory: a slot of the ring and their number; of a strip what lies between, and a row of the input that
# is kept; all with barriers.
_SLOT, _SLOTS = 8 * (16 * ROWS * STAGED + 32) - 32, 6
_BETWEEN, _KEPT = 2 * NARROW * (ROWS + 2) * STAGED, 2 * WIDE * STAGED
PACKED_BYTES = 2 * (2 * WIDE * NARROW + 9 * NARROW**2) + 4 * (2 * NARROW + WIDE)
SHARED_BYTES = PACKED_BYTES + STRIPS * (_BETWEEN + _KEPT) + _SLOTS * (_SLOT + 8 * (STRIPS + 1))
# Until blocks have their weights; of a multiprocessor's share of the memory's bandwidth, what a block reached in three
# such kernels behind each other on an H200.
_START_US, _REACHED = 5.0, 0.65


class Bottleneck(NamedTuple):
    """Convolutions of which each alone reads what the one before computes, and the last adds what the first reads."""

    first: ConvSpec
    second: ConvSpec
    third: ConvSpec

    @classmethod
    def ending_with(cls, last: ConvSpec) -> "Bottleneck":
        """The only one that the kernel computes whose last convolution `last` may be."""
        n, _, h, w = last.input_shape
        same: dict[str, Any] = {"bias": True, "relu": True, "dtype": last.dtype}
        return cls(
            ConvSpec(n, WIDE, h, w, NARROW, 1, 1, **same),
            ConvSpec(n, NARROW, h, w, NARROW, 3, 3, padding=(1, 1, 1, 1), **same),
            ConvSpec(n, NARROW, h, w, WIDE, 1, 1, residual=True, **same),
        )

    def is_served(self, gpu: GpuInfo) -> bool:
        """Whether the kernel computes them on this GPU."""
        fits = gpu.has_sparse_warpgroups and gpu.block_shared_bytes >= SHARED_BYTES
        return fits and is_half(self.third.dtype) and self == Bottleneck.ending_with(self.third)

    @property
    def across(self) -> int:
        """Strips beside each other in an image."""
        return math.ceil(self.first.w / COLUMNS)

    @property
    def strips(self) -> int:
        """Of all images."""
        return self.first.n * self.across

    @property
    def steps(self) -> int:
        """Of a strip, one ahead apart."""
        return math.ceil(self.first.h / ROWS)

    def blocks(self, gpu: GpuInfo) -> int:
        """Of the kernel's grid, one a multiprocessor."""
        return min(math.ceil(self.strips / STRIPS), gpu.multiprocessors)

    def estimated_us(self, gpu: GpuInfo) -> float:
        """Estimated time in microseconds."""
        rounds = math.ceil(self.strips / STRIPS / self.blocks(gpu))
        # A step is read, but for most of a strip's first one, and written.
        step_bytes = STRIPS * ROWS * (STAGED + COLUMNS) * WIDE * STORAGE[self.first.dtype].size_bytes
        return _START_US + rounds * self.steps * step_bytes * gpu.multiprocessors / (_REACHED * gpu.dram_bytes_s) * 1e6
