"""How a linear layer on many images is cut for its kernel with weights as data (codegen/cuda/linear.cu)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.kernel_library import OF_TYPE, WARP

# Filters that a warp takes at a time -> images of a lane: there are kernels for these.
LANE_IMAGES = {1: (1, 2, 4), 4: (1, 2, 4), 8: (1, 2)}
# Warps of a block; floats of a chunk for each image of a lane; buffers of a warp's ring.
WARPS, CHUNK, SLOTS = 16, 768, 3
# Positions of a step; by filters at a time: 16-byte units of a step, and steps of a ring's buffer, one unit a lane.
POSITIONS, UNITS, STEPS = 4, {1: 2, 4: 5, 8: 9}, {1: 16, 4: 6, 8: 3}


@dataclass(frozen=True)
class LinearTiling:
    """A block has `filters` outputs of 32 times `lane_images` images; `parts` blocks, a cluster, share the inputs.

    A warp takes `shared` filters at a time, which have the same non-zeros or are charged for those of each other.
    """

    spec: ConvSpec
    filters: int
    lane_images: int
    parts: int
    shared: int = 1

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""; whether shared memory suffices is not judged."""
        if self.lane_images not in LANE_IMAGES[self.shared]:
            return f"no kernel has {self.lane_images} images a lane and {self.shared} filters at a time"
        if self.filters % (WARPS * self.shared) or self.filters % self.parts:
            return f"{self.filters} filters do not divide into {WARPS} warps of {self.shared} and {self.parts} parts"
        if self.part_inputs * (self.parts - 1) >= self.inputs:
            return f"{self.parts} parts of {self.inputs} inputs"
        return ""

    @property
    def inputs(self) -> int:
        """Of an image."""
        return self.spec.c * self.spec.h * self.spec.w

    @property
    def images(self) -> int:
        """Of a block."""
        return WARP * self.lane_images

    @property
    def chunk(self) -> int:
        """Inputs that come at a time."""
        return CHUNK // self.lane_images

    @cached_property
    def part_inputs(self) -> int:
        """Inputs of a block, in whole reads."""
        return -(-self.inputs // (4 * self.parts)) * 4

    @property
    def chunks(self) -> int:
        """Of a part."""
        return -(-self.part_inputs // self.chunk)

    @property
    def rows(self) -> int:
        """Of a warp in a chunk: so many times `shared` filters."""
        return self.filters // (WARPS * self.shared)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks: parts, filters, images."""
        return self.parts, -(-self.spec.k // self.filters), -(-self.spec.n // self.images)

    @property
    def streams(self) -> int:
        """Warps that have weights of their own."""
        return self.grid[0] * self.grid[1] * WARPS

    @property
    def slot_units(self) -> int:
        """16-byte units of a ring's buffer."""
        return UNITS[self.shared] * STEPS[self.shared]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: a chunk and a row of zeros, rings, sums."""
        floats = (self.chunk + 1) * self.images + self.filters * (self.images + self.lane_images)
        return 4 * floats + 16 * WARPS * SLOTS * self.slot_units

    @property
    def zero(self) -> int:
        """Byte offset of the row of zeros."""
        return self.chunk * self.images * 4

    def offsets(self, rows: np.ndarray) -> np.ndarray:
        """Byte offsets of rows of a chunk, with the bits by which their images are exchanged."""
        return rows * (4 * self.images) + rows // 4 % 8 * 16

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return kernel_name(self.lane_images, self.shared, self.spec.dtype)


def kernel_name(lane_images: int, shared: int, dtype: str) -> str:
    """The kernel for so many images a lane and filters at a time."""
    return f"tvm_sparse_linear_{lane_images}_{shared}{OF_TYPE[dtype]}"
