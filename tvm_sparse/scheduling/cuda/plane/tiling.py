"""How a convolution of shared planes is cut (codegen/cuda/plane.cu)."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.scheduling.cuda.library.kernel_library import OF_TYPE

# Pixels of a tile that there are kernels for, by the type of tensors.
PIXELS = {FLOAT32: (64, 128), FLOAT16: (64, 128, 192), BFLOAT16: (64, 128, 192)}
# Filters of a block; planes of a group; threads of a block; slots of the ring at most.
FILTERS, GROUP, THREADS, MAX_SLOTS = 64, 8, 512, 4
# Where an input is has 32 bits.
MAX_INPUT_BYTES = 2**32
# What a plane is: a channel, a row of a channel's taps, or a single tap.
CHANNEL, ROW, TAP = range(3)
# 16-byte units in front of a tile's groups, of a group, and of a part of a k-step's weights.
GROUPS_AT, GROUP_UNITS, STEP_UNITS = 49, 3, 128


class Shift(NamedTuple):
    """How a tap is read along one axis: `base` elements further in planes of their own, `places` further in a plane."""

    base: int
    places: int


@dataclass(frozen=True)
class PlaneTiling:
    """A block has 64 filters, and goes from tile to tile of `pixels` places of all images' line.

    `plane` is what is staged together and what zeros are skipped of: CHANNEL, ROW or TAP. A slot of the ring has room
    for `groups` groups of 8 planes.
    """

    spec: ConvSpec
    pixels: int
    plane: int
    groups: int

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""."""
        if self.pixels not in PIXELS[self.spec.dtype]:
            return f"no kernel has tiles of {self.pixels} pixels"
        if self.spec.k // self.spec.groups % FILTERS:
            return f"filters do not divide into tiles of {FILTERS}"
        if (size := math.prod(self.spec.input_shape) * STORAGE[self.spec.dtype].size_bytes) > MAX_INPUT_BYTES:
            return f"the input takes {size} bytes, at most {MAX_INPUT_BYTES}"
        return ""

    @cached_property
    def row_shifts(self) -> list[Shift]:
        """Of each row of taps."""
        spec, is_own = self.spec, self.plane != CHANNEL
        return [_shift(r * spec.dilation[0], spec.stride[0], is_own) for r in range(spec.r)]

    @cached_property
    def column_shifts(self) -> list[Shift]:
        """Of each column of taps."""
        spec, is_own = self.spec, self.plane == TAP
        return [_shift(s * spec.dilation[1], spec.stride[1], is_own) for s in range(spec.s)]

    @property
    def parts(self) -> int:
        """Numbers that one of a tensor is the sum of: of float32 two in float16."""
        return 2 if self.spec.dtype == FLOAT32 else 1

    @cached_property
    def vector(self) -> int:
        """Neighbouring pixels that are written together."""
        spec = self.spec
        is_even = spec.w % 2 == 0 and spec.out_w % 2 == 0 and spec.stride[1] == 1
        own = self.plane == TAP and (spec.s > 1 or spec.padding[1] % 2 == 1)
        return 2 if is_even and not own else 1

    @property
    def read_together(self) -> int:
        """Neighbouring pixels that are read together."""
        return 1 if self.spec.dtype == FLOAT32 else self.vector

    @cached_property
    def lead(self) -> int:
        """Zeros before each row."""
        return self._even(self.spec.padding[1]) if self.plane != TAP else self.spec.padding[1]

    def _even(self, count: int) -> int:
        return -(-count // self.vector) * self.vector

    @property
    def first_column(self) -> int:
        """Places from a pixel to what its first column of taps reads."""
        return self.lead - self.spec.padding[1]

    @cached_property
    def pitch(self) -> int:
        """Places from one row to the next; neighbours share the zeros between them where that is possible."""
        spec = self.spec
        alone = spec.out_w + max(each.places for each in self.column_shifts) + self.first_column
        if spec.stride[1] > 1 or self.plane == TAP:
            return self._even(alone)
        reach = spec.out_w - 1 + (spec.s - 1) * spec.dilation[1] - spec.padding[1] - (spec.w - 1)
        return self._even(min(alone, max(spec.w + max(self.lead, reach), spec.out_w)))

    @cached_property
    def rows(self) -> int:
        """Rows from one image to the next, likewise."""
        spec = self.spec
        alone = spec.out_h + max(each.places for each in self.row_shifts)
        if spec.stride[0] > 1 or self.plane != CHANNEL:
            return alone
        reach = spec.out_h - 1 + (spec.r - 1) * spec.dilation[0] - spec.padding[0] - (spec.h - 1)
        return min(alone, max(spec.h + max(spec.padding[0], reach), spec.out_h))

    @property
    def image_places(self) -> int:
        """Places of an image."""
        return self.rows * self.pitch

    @property
    def places(self) -> int:
        """Places of all images."""
        return self.spec.n * self.image_places

    def offset(self, r: int, s: int) -> int:
        """Places from a pixel to what a tap reads in its plane."""
        return self.row_shifts[r].places * self.pitch + self.column_shifts[s].places + self.first_column

    @cached_property
    def staged(self) -> int:
        """Places of a plane that a tile needs."""
        return self._even(self.pixels + self.offset(-1, -1))

    @property
    def k_tiles(self) -> int:
        """Tiles of filters."""
        return self.spec.k // FILTERS

    @property
    def tiles(self) -> int:
        """Tiles of pixels."""
        return -(-self.places // self.pixels)

    def workers(self, multiprocessors: int) -> int:
        """Blocks that share the tiles of 64 filters, so that all blocks run at a time."""
        most = max(1, min(multiprocessors // self.k_tiles, self.tiles))
        return -(-self.tiles // -(-self.tiles // most))

    def ring_bytes(self, slots: int) -> int:
        """Shared memory besides the weights, with so many slots."""
        outputs = 2 * FILTERS * (self.pixels + 8) * STORAGE[self.spec.dtype].size_bytes
        # Which inputs are out of float16's range, by slots and pixels.
        ranges = 48 + 6 * self.pixels if self.parts > 1 else 0
        return outputs + ranges + 16 * slots * self.parts * self.groups * self.staged

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return kernel_name(self.pixels, self.spec.dtype)


def _shift(distance: int, stride: int, is_own: bool) -> Shift:
    """`is_own`: the tap has a plane of its own; otherwise those have that lie between what pixels read."""
    return Shift(distance, 0) if is_own else Shift(distance % stride, distance // stride)


def kernel_name(pixels: int, dtype: str) -> str:
    """The kernel for tiles of so many pixels."""
    return f"tvm_sparse_plane_{pixels}{OF_TYPE[dtype]}"
