"""How an unstructured convolution is cut for sparse tensor cores (codegen/cuda/quad.cu)."""

from dataclasses import dataclass
from functools import cached_property

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.scheduling.cuda.multiplied import OF_MULTIPLIED
from tvm_sparse.scheduling.family import TF32_VARIANT

# Tiles of 64 filters of a warpgroup -> pixels of a block: there are kernels for these.
_SINGLE: dict[int, tuple[int, ...]] = {1: (64, 96, 128), 2: (64, 96)}
_HALF: dict[int, tuple[int, ...]] = {1: (64, 96, 128), 2: (64, 96, 128)}
PIXELS = {FLOAT32: _SINGLE, TF32_VARIANT: _SINGLE, FLOAT16: _HALF, BFLOAT16: _HALF}
# Blocks that share a tile's k-blocks.
PARTS = (1, 2, 4, 8)
# Positions of a k-block; warpgroups that multiply; threads of a block.
K_BLOCK, CONSUMERS, THREADS = 32, 2, 512
# K-blocks of the ring, by the numbers that one of a tensor is the sum of.
STAGES = {1: 6, 2: 4}
# Filters that a product of tensor cores has at a time.
FILTERS = 64
# Positions of a block at most: where they are lies in shared memory behind the ring.
MAX_POSITIONS = 8192
MAX_PIXELS = 128
# A filter's taps are bits of a number, and offsets from the first of a tile's images are bytes.
MAX_TAPS, MAX_ELEMENTS = 32, 2**29


@dataclass(frozen=True)
class QuadTiling:
    """A block has 64 * `CONSUMERS` * `m_tiles` filters of `pixels` output pixels, of any images.

    `parts` blocks, a cluster, have one tile, and each has a part of its positions. `tf32`: whether float32 may be
    rounded to TF32.
    """

    spec: ConvSpec
    m_tiles: int
    pixels: int
    parts: int = 1
    tf32: bool = False

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""."""
        if self.pixels not in PIXELS[self.multiplied].get(self.m_tiles, ()):
            return f"no kernel has {self.m_tiles} tiles of filters and {self.pixels} pixels"
        if self.parts not in PARTS:
            return f"{self.parts} parts of a tile, not one of {PARTS}"
        return ""

    @property
    def volumes(self) -> Volumes:
        """What it reads; an image alone is a volume of one map."""
        return self.spec.volumes or Volumes(1, 1, 1)

    @property
    def multiplied(self) -> str:
        """What is multiplied, a key of `PIXELS`."""
        return TF32_VARIANT if self.tf32 else self.spec.dtype

    @property
    def numbers(self) -> int:
        """Numbers that one of a tensor is the sum of: of float32 two in float16."""
        return 2 if self.multiplied == FLOAT32 else 1

    @property
    def element_bytes(self) -> int:
        """Of a number of a tensor."""
        return STORAGE[self.spec.dtype].size_bytes

    @property
    def tiles(self) -> int:
        """Of 64 filters of a block."""
        return CONSUMERS * self.m_tiles

    @property
    def filters(self) -> int:
        """Of a block."""
        return FILTERS * self.tiles

    @property
    def group_filters(self) -> int:
        """Filters of a group, of which its last tile may have fewer than others."""
        return self.spec.k // self.spec.groups

    @property
    def group_tiles(self) -> int:
        """Tiles of a group's filters."""
        return -(-self.group_filters // self.filters)

    @property
    def filled(self) -> int:
        """Filters of zeros that fill a group's last tile up."""
        return self.group_tiles * self.filters - self.group_filters

    @property
    def k_tiles(self) -> int:
        """Tiles of filters."""
        return self.group_tiles * self.spec.groups

    @property
    def blocks(self) -> int:
        """Thread blocks."""
        return self.parts * self.k_tiles * -(-self.spec.pixels // self.pixels)

    @property
    def choices_at(self) -> int:
        """Where a k-block's choices begin among its weights, in units of 16 bytes."""
        return 128 * self.numbers * self.tiles

    @property
    def positions_at(self) -> int:
        """Where a k-block's positions begin."""
        return self.choices_at + 16 * self.tiles

    @property
    def units(self) -> int:
        """16-byte units of a k-block: weights, choices, positions."""
        return self.positions_at + K_BLOCK // 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the ring and positions, or sums on their way out; then what its pixels have."""
        ring = STAGES[self.numbers] * K_BLOCK * self.pixels * 2 * self.numbers + 8 * MAX_POSITIONS
        return max(ring, 4 * self.filters * (self.pixels + 8)) + 8 * self.pixels + 16

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return kernel_name(self.m_tiles, self.pixels, self.multiplied)


def kernel_name(m_tiles: int, pixels: int, multiplied: str) -> str:
    """The kernel for so many tiles of filters a warpgroup and pixels a block, and what is multiplied."""
    return f"tvm_sparse_quad_{m_tiles}_{pixels}{OF_MULTIPLIED[multiplied]}"
