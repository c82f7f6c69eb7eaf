"""How a linear layer on many images is cut for tensor cores (codegen/cuda/linear_tensor.cu)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tvm_sparse.conv.spec import ConvSpec

# Filters of a block that there are kernels for.
FILTERS = (64, 128, 144)
# Images that a warpgroup multiplies, and of a block; blocks that share a tile's k-blocks: of seven only fifteen
# clusters run at once.
ROWS, IMAGES, PARTS = 64, (64, 128), (1, 2, 3, 4, 5, 6, 8)
# Inputs that are multiplied at a time, a k-block; k-blocks of the ring; threads of a block; a block's k-blocks at most.
K_BLOCK, STAGES, THREADS, MAX_K_BLOCKS = 32, 4, 512, 1024
# (place, value) that a thread takes at a time; bytes of a list's quad.
QUAD, QUAD_BYTES = 4, 24
# Inputs whose places in a k-block are exchanged with each other.
EXCHANGED = 16


@dataclass(frozen=True)
class LinearTensorTiling:
    """A block has `filters` outputs of `images` images; `parts` blocks, a cluster, share the k-blocks of inputs.

    The weights of a `dense` layer are read as they are multiplied, those of others as lists of non-zeros.
    """

    spec: ConvSpec
    filters: int
    images: int
    parts: int
    dense: bool = False

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""."""
        if self.filters not in FILTERS or self.images not in IMAGES:
            return f"no kernel has {self.filters} filters and {self.images} images"
        if self.parts not in PARTS:
            return f"{self.parts} parts of the inputs, not one of {PARTS}"
        if self.parts > self.k_blocks:
            return f"{self.parts} parts of {self.k_blocks} k-blocks of inputs"
        if self.part_k_blocks > MAX_K_BLOCKS:
            return f"{self.part_k_blocks} k-blocks of inputs, at most {MAX_K_BLOCKS}"
        return ""

    @property
    def k_blocks(self) -> int:
        """Of all inputs."""
        return -(-self.spec.c // K_BLOCK)

    @property
    def part_k_blocks(self) -> int:
        """K-blocks of a block, at most."""
        return -(-self.k_blocks // self.parts)

    @property
    def tiles(self) -> int:
        """Tiles of filters."""
        return -(-self.spec.k // self.filters)

    @property
    def places(self) -> int:
        """Weights of a k-block."""
        return self.filters * K_BLOCK

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks: parts, filters, images."""
        return self.parts, self.tiles, -(-self.spec.n // self.images)

    @property
    def room(self) -> int:
        """Quads of a k-block's list that there is room for in shared memory."""
        return self.places // 12 // 32 * 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the ring, lists and where they begin, or sums on their way out."""
        ahead = 6 if self.filters == 64 else 2
        lists = (STAGES + 2 * ahead) * self.room * QUAD_BYTES + 4 * (MAX_K_BLOCKS + 1)
        return max(STAGES * self.places * 8 + lists, 4 * self.images * (self.filters + 8))

    def place(self, filters: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Where in a k-block the weight lies that a filter of a tile has for one of the k-block's inputs.

        Four inputs of a filter lie side by side, as tensor cores read them. Of 16 inputs these are every fourth, as a
        thread that reads four inputs of an image side by side has one in each of four rows.
        """
        fourth, row = inputs % EXCHANGED // 4, inputs // EXCHANGED * 4 + inputs % 4
        return (row * self.filters + filters) * 4 + fourth

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return kernel_name(self.filters, self.dense)


def kernel_name(filters: int, dense: bool) -> str:
    """The kernel for so many filters a block."""
    return f"tvm_sparse_linear_tensor_{'dense' if dense else 'lists'}_{filters}"
