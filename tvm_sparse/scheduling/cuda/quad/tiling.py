"""How an unstructured convolution is cut for sparse tensor cores (codegen/cuda/quad.cu)."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.kernel_numbers import divisor, epilogue

# The library of kernels, and the tiles of 64 filters of a warpgroup and pixels of a block that there are kernels for.
LIBRARY = "quad"
PIXELS = {1: (64, 96, 128), 2: (64, 96)}
# Blocks that share a tile's slabs.
PARTS = (1, 2, 4, 8)
# Positions of a slab; slabs of the ring; warpgroups that multiply; threads of a block.
SLAB, STAGES, MULTIPLIERS, THREADS = 32, 4, 2, 512
# Filters that a product of tensor cores has at a time.
FILTERS = 64
# Positions of a block at most: where they are lies in shared memory behind the ring.
MAX_POSITIONS = 8192
MAX_PIXELS = max(max(each) for each in PIXELS.values())
# A filter's taps are bits of a number, and offsets from the first of a tile's images are bytes.
MAX_TAPS, MAX_ELEMENTS = 32, 2**29


@dataclass(frozen=True)
class QuadTiling:
    """A block has 64 * `MULTIPLIERS` * `m_tiles` filters of `pixels` output pixels, of any images.

    `parts` blocks, a cluster, have one tile, and each has a part of its positions.
    """

    spec: ConvSpec
    m_tiles: int
    pixels: int
    parts: int = 1

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""."""
        if self.pixels not in PIXELS.get(self.m_tiles, ()):
            return f"no kernel has {self.m_tiles} tiles of filters and {self.pixels} pixels"
        if self.parts not in PARTS:
            return f"{self.parts} parts of a tile, not one of {PARTS}"
        return ""

    @property
    def tiles(self) -> int:
        """Of 64 filters of a block."""
        return MULTIPLIERS * self.m_tiles

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
        """Where a slab's choices begin among its weights, in units of 16 bytes."""
        return 256 * self.tiles

    @property
    def positions_at(self) -> int:
        """Where a slab's positions begin."""
        return self.choices_at + 16 * self.tiles

    @property
    def units(self) -> int:
        """16-byte units of a slab: weights, choices, positions."""
        return self.positions_at + SLAB // 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the ring and positions, or sums on their way out; then what its pixels have."""
        ring = STAGES * SLAB * self.pixels * 4 + 8 * MAX_POSITIONS
        return max(ring, 4 * self.filters * (self.pixels + 8)) + 8 * self.pixels + 16

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return kernel_name(self.m_tiles, self.pixels)


def kernel_name(m_tiles: int, pixels: int) -> str:
    """The kernel for so many tiles of filters a warpgroup and pixels a block."""
    return f"tvm_sparse_quad_{m_tiles}_{pixels}"


class Geometry(NamedTuple):
    """The kernel's integer parameters, in its order; their meaning is said there."""

    parts: int
    parts_m: int
    k_tiles: int
    k_tiles_m: int
    group_tiles: int
    group_tiles_m: int
    group_filters: int
    pixels: int
    out_map: int
    out_map_m: int
    out_w: int
    out_w_m: int
    out_image: int
    in_h: int
    in_w: int
    image: int
    group_elements: int
    r: int
    s: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    dilation_h: int
    dilation_w: int
    has_bias: int
    has_residual: int
    relu: int
    relu_max: int


def geometry(tiling: QuadTiling) -> Geometry:
    """What the kernel is called with."""
    spec = tiling.spec
    out_map, image = spec.out_h * spec.out_w, spec.c * spec.h * spec.w
    return Geometry(
        **divisor("parts", tiling.parts),
        **divisor("k_tiles", tiling.k_tiles),
        **divisor("group_tiles", tiling.group_tiles),
        group_filters=tiling.group_filters,
        pixels=spec.pixels,
        **divisor("out_map", out_map),
        **divisor("out_w", spec.out_w),
        out_image=spec.k * out_map,
        in_h=spec.h,
        in_w=spec.w,
        image=image,
        group_elements=image // spec.groups,
        r=spec.r,
        s=spec.s,
        stride_h=spec.stride[0],
        stride_w=spec.stride[1],
        pad_h=spec.padding[0],
        pad_w=spec.padding[1],
        dilation_h=spec.dilation[0],
        dilation_w=spec.dilation[1],
        **epilogue(spec),
    )
