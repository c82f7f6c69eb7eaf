"""How a convolution with its weights as data is cut, staged and addressed: the numbers that its CUDA kernel is given.

The kernel (codegen/cuda/sparse_data.cu) is the same for every shape; a `Tiling` says how it is cut, and `geometry`
turns both into what the kernel is called with.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import product
from typing import NamedTuple

from tvm_sparse.conv.spec import ConvSpec

# Pixels of a lane at most: the kernel has accumulators for so many.
MAX_LANE_PIXELS = 8
WARP = 32


class Staging(IntEnum):
    """How the input comes to shared memory.

    PLANES
        One float at a time, each residue of a strided row and column apart.
    ROWS
        Whole rows in vectors of up to four floats; with a stride, lanes read every other float.
    RUN
        All maps of a block's channels as they lie in memory, for 1x1 convolutions.
    """

    PLANES = 0
    ROWS = 1
    RUN = 2


class Geometry(NamedTuple):
    """The kernel's integer parameters, in its order; their meaning is said there."""

    rows: int
    columns: int
    filters: int
    parts: int
    pixel_groups: int
    pixel_groups_m: int
    filters_at_once: int
    pitch: int
    pitch_m: int
    tiles_x: int
    tiles_x_m: int
    tiles_y: int
    tiles_y_m: int
    quads: int
    quads_m: int
    k_tiles: int
    k_tiles_m: int
    out_h: int
    out_w: int
    out_map: int
    out_image: int
    in_h: int
    in_w: int
    channel: int
    image: int
    part_elements: int
    group_elements: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    mode: int
    vector: int
    vectors: int
    per_channel: int
    per_channel_m: int
    per_row: int
    per_row_m: int
    plane_rows: int
    plane_rows_m: int
    planes_w: int
    planes_w_m: int
    plane: int
    plane_m: int
    row_pitch: int
    channel_pitch: int
    lead: int
    input_floats: int
    zero_rows: int
    first_pair: int
    has_bias: int
    has_residual: int
    relu: int


@dataclass(frozen=True)
class Tiling:
    """How a convolution is cut: a block has `filters` output channels of `rows` x `columns` pixels of one image.

    Its `warps` divide filters, and each filter's pixels into `pixel_groups`; `parts` blocks, a cluster, share the input
    channels. A 1x1 convolution without stride and padding has one row, of all pixels of a map.
    """

    spec: ConvSpec
    filters: int
    rows: int
    columns: int
    parts: int
    pixel_groups: int
    warps: int
    staging: Staging

    @cached_property
    def is_pointwise(self) -> bool:
        """Whether pixels read what lies where they lie, so that rows mean nothing."""
        return is_pointwise(self.spec)

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""; whether shared memory suffices is not judged."""
        spec, per_group = self.spec, self.spec.k // self.spec.groups
        if per_group % self.filters or (spec.c // spec.groups) % self.parts or self.filters % self.parts:
            return "filters or channels do not divide"
        if self.warps % self.pixel_groups or self.filters * self.pixel_groups < self.warps:
            return "warps do not divide pixels and filters, or there are more than these"
        if self.staging is Staging.RUN and not (self.is_pointwise and self.columns == self._out[1] and self._run_fits):
            return "the input is not one run of 16-byte vectors"
        if self.staging is Staging.ROWS and not self._rows_fit:
            return "tiles are not whole rows"
        if not 1 <= self.lane_pixels <= MAX_LANE_PIXELS:
            return f"{self.lane_pixels} pixels a lane, at most {MAX_LANE_PIXELS}"
        needed = -(-self.rows * self.pitch // WARP)
        return "pixel groups without pixels" if needed <= (self.pixel_groups - 1) * self.lane_pixels else ""

    @property
    def _in(self) -> tuple[int, int]:
        spec = self.spec
        return (1, spec.h * spec.w) if self.is_pointwise else (spec.h, spec.w)

    @property
    def _out(self) -> tuple[int, int]:
        spec = self.spec
        return (1, spec.out_h * spec.out_w) if self.is_pointwise else (spec.out_h, spec.out_w)

    @property
    def _run_fits(self) -> bool:
        spec = self.spec
        return all(count * spec.h * spec.w % 4 == 0 for count in (self.part_channels, spec.c // spec.groups, spec.c))

    @property
    def _rows_fit(self) -> bool:
        if self.is_pointwise:
            return self.columns % self.vector == 0
        return self.columns == self.spec.out_w and self.spec.stride[1] in (1, 2)

    @property
    def part_channels(self) -> int:
        """Input channels of a block."""
        return self.spec.c // self.spec.groups // self.parts

    @property
    def vector(self) -> int:
        """Floats of a copy."""
        if self.staging is Staging.PLANES:
            return 1
        if self.staging is Staging.RUN:
            return 4
        width = self._in[1]
        if self.is_pointwise:
            return 4 if width % 4 == 0 and self.columns % 4 == 0 else 1
        return next(v for v in (4, 2, 1) if width % v == 0)

    @cached_property
    def lead(self) -> int:
        """Zeros before each row."""
        if self.staging is not Staging.ROWS or self.is_pointwise:
            return 0
        spec, unit = self.spec, self.vector
        # They pad the end of the row above too: as many as a tap reads beyond it.
        last = (spec.out_w - 1) * spec.stride[1] + (spec.s - 1) * spec.dilation[1] - spec.padding[1]
        lead = -(-max(spec.padding[1], last - spec.w + 1) // unit) * unit
        while (lead + spec.w) % spec.stride[1] or (lead + spec.w) // spec.stride[1] < spec.out_w:
            lead += unit
        return lead

    @property
    def step(self) -> int:
        """Floats between the inputs of neighbouring pixels."""
        return self.spec.stride[1] if self.staging is Staging.ROWS and not self.is_pointwise else 1

    @cached_property
    def planes(self) -> tuple[int, int]:
        """Residues of rows and columns that are staged apart."""
        if self.is_pointwise:
            return 1, 1
        rows, columns = (min(st, (size - 1) * d + 1) for st, size, d in self._axes)
        return (rows, 1) if self.staging is Staging.ROWS else (rows, columns)

    @property
    def _axes(self) -> list[tuple[int, int, int]]:
        spec = self.spec
        return list(zip(spec.stride, (spec.r, spec.s), spec.dilation, strict=True))

    @property
    def plane_rows(self) -> int:
        """Rows of a plane."""
        (stride, size, dilation), _ = self._axes
        return self.rows + (0 if self.is_pointwise else (size - 1) * dilation // stride)

    @cached_property
    def row_pitch(self) -> int:
        """Floats from one staged row to the next."""
        if self.is_pointwise:
            return self.columns
        if self.staging is Staging.ROWS:
            return self.lead + self.spec.w
        _, (stride, size, dilation) = self._axes
        return self.columns + (size - 1) * dilation // stride

    @property
    def pitch(self) -> int:
        """Pixels from one row of a tile to the next."""
        return self.row_pitch // self.step

    @property
    def lane_pixels(self) -> int:
        """Pixels of a lane."""
        return -(-self.rows * self.pitch // (WARP * self.pixel_groups))

    @property
    def places(self) -> int:
        """Pixels that a block computes for a filter, those between rows included."""
        return self.lane_pixels * WARP * self.pixel_groups

    @property
    def channel_pitch(self) -> int:
        """Floats from one staged channel to the next."""
        rows, columns = self.planes
        return rows * columns * self.plane_rows * self.row_pitch

    def offset(self, r: int, s: int) -> int:
        """Floats from a pixel's place to the input that a tap reads."""
        if self.is_pointwise:
            return 0
        (st_h, _, d_h), (st_w, _, d_w) = self._axes
        row, column = r * d_h, s * d_w
        if self.staging is Staging.ROWS:
            plane_row = row % st_h * self.plane_rows + row // st_h
            return plane_row * self.row_pitch + self.lead - self.spec.padding[1] + column
        plane = row % st_h * self.planes[1] + column % st_w
        return (plane * self.plane_rows + row // st_h) * self.row_pitch + column // st_w

    @cached_property
    def input_floats(self) -> int:
        """Shared memory of the input, as far as lanes without a pixel read."""
        taps = product(range(self.spec.r), range(self.spec.s))
        farthest = (self.part_channels - 1) * self.channel_pitch + max(self.offset(r, s) for r, s in taps)
        floats = max(self.part_channels * self.channel_pitch + self.lead, farthest + self.places * self.step)
        return -(-floats // 4) * 4

    def shared_bytes(self, stride: int) -> int:
        """Shared memory of a block whose weights take `stride` times 16 bytes."""
        sums = self.filters * self.places if self.parts > 1 else 0
        return 16 * stride + 4 * (self.input_floats + sums)

    @property
    def first_pair(self) -> int:
        """Where pairs begin among a block's weights, in 16 bytes."""
        return -(-(2 * self.filters + 1) // 4)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles below and beside each other."""
        return -(-self._out[0] // self.rows), -(-self._out[1] // self.columns)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks: parts, filters, tiles of all images."""
        return self.parts, self.spec.k // self.filters, self.tiles[0] * self.tiles[1] * self.spec.n

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return f"tvm_sparse_data_{self.lane_pixels}_{self.step}"

    def geometry(self) -> Geometry:
        """What the kernel is called with."""
        spec, (in_h, in_w), (out_h, out_w) = self.spec, self._in, self._out
        planes_h, planes_w = self.planes
        plane = self.plane_rows * self.row_pitch
        row_vectors = {Staging.ROWS: (self.columns if self.is_pointwise else spec.w) // self.vector}
        per_row = row_vectors.get(self.staging, 1)
        if self.staging is Staging.ROWS:
            per_channel = planes_h * self.plane_rows * per_row
        else:
            per_channel = self.channel_pitch // self.vector if self.staging is Staging.PLANES else 1
        vectors = self.part_channels * per_channel
        if self.staging is Staging.RUN:
            vectors = self.part_channels * self.channel_pitch // 4
        zero_rows = self.part_channels * planes_h * self.plane_rows + 1 if self.lead else 0
        quads, k_tiles = self.places // 4, spec.k // spec.groups // self.filters
        tiles_y, tiles_x = self.tiles
        return Geometry(
            rows=self.rows,
            columns=self.columns,
            filters=self.filters,
            parts=self.parts,
            **_divisor("pixel_groups", self.pixel_groups),
            filters_at_once=self.warps // self.pixel_groups,
            **_divisor("pitch", self.pitch),
            **_divisor("tiles_x", tiles_x),
            **_divisor("tiles_y", tiles_y),
            **_divisor("quads", quads),
            **_divisor("k_tiles", k_tiles),
            out_h=out_h,
            out_w=out_w,
            out_map=out_h * out_w,
            out_image=spec.k * out_h * out_w,
            in_h=in_h,
            in_w=in_w,
            channel=in_h * in_w,
            image=spec.c * in_h * in_w,
            part_elements=self.part_channels * in_h * in_w,
            group_elements=spec.c // spec.groups * in_h * in_w,
            stride_h=1 if self.is_pointwise else spec.stride[0],
            stride_w=1 if self.is_pointwise else spec.stride[1],
            pad_h=spec.padding[0],
            pad_w=spec.padding[1],
            mode=int(self.staging),
            vector=self.vector,
            vectors=vectors,
            **_divisor("per_channel", per_channel),
            **_divisor("per_row", per_row),
            **_divisor("plane_rows", self.plane_rows),
            **_divisor("planes_w", planes_w),
            **_divisor("plane", plane),
            row_pitch=self.row_pitch,
            channel_pitch=self.channel_pitch,
            lead=self.lead,
            input_floats=self.input_floats,
            zero_rows=zero_rows,
            first_pair=self.first_pair,
            has_bias=int(spec.bias),
            has_residual=int(spec.residual),
            relu=int(spec.relu),
        )


def is_pointwise(spec: ConvSpec) -> bool:
    """Whether each output reads the inputs at its own place alone."""
    return (spec.r, spec.s, spec.stride, spec.padding) == (1, 1, (1, 1), (0, 0, 0, 0))


def _divisor(name: str, value: int) -> dict[str, int]:
    """A divisor and the number that a multiplication needs to divide by it, as a signed 32-bit integer."""
    magic = (1 << 32) // value + 1 if value > 1 else 0
    return {name: value, f"{name}_m": magic - (1 << 32) if magic >= 1 << 31 else magic}
