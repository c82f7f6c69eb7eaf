"""How a convolution with its weights as data is cut into thread blocks, staged and addressed in shared memory."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, reduce
from itertools import product
from operator import and_
from typing import Any

from tvm_sparse.scheduling.cuda.library.kernel_library import OF_TYPE, WARP
from tvm_sparse.scheduling.cuda.library.map_size import MapSizes, is_grouped
from tvm_sparse.scheduling.cuda.library.together import largest

# Filters that a warp takes at a time, as they share their non-zeros -> pixels of a lane at most: there are kernels with
# accumulators for so many.
MAX_LANE_PIXELS = {1: 8, 4: 8, 8: 8, 16: 4}
# How names of kernels begin, with the place of a copy's number.
PREFIX = "tvm_sparse{}_"
# Warps of a block at most where a warp takes several filters: their sums need registers.
MAX_VECTOR_WARPS = 16
# Of a `Tiling`, what filters, parts and warps of a block have no part in.
OF_PIXELS = (
    *("spec", "rows", "columns", "pixel_groups", "staging", "shared"),
    *("is_pointwise", "in_size", "out_size", "tiles", "vector", "lead", "step", "planes", "plane_rows", "row_pitch"),
    *("lane_pixels", "channel_pitch", "farthest_tap", "obstacle_of_pixels"),
)


class Staging(IntEnum):
    """How the input comes to shared memory.

    PLANES
        One element at a time, each residue of a strided row and column apart.
    ROWS
        Whole rows in vectors of up to four elements; with a stride, lanes read every other float.
    RUN
        All maps of a block's channels as they lie in memory, for 1x1 convolutions.
    """

    PLANES = 0
    ROWS = 1
    RUN = 2


@dataclass(frozen=True)
class Tiling(MapSizes):
    """How a convolution is cut: a block has `filters` output channels of `rows` x `columns` pixels of one image.

    Its `warps` divide filters, and each filter's pixels into `pixel_groups`; `parts` blocks, a cluster, share the input
    channels. A 1x1 convolution without stride and padding has one row, of all pixels of a map. A warp takes `shared`
    filters at a time, which have the same non-zeros.
    """

    filters: int
    rows: int
    columns: int
    parts: int
    pixel_groups: int
    warps: int
    staging: Staging
    shared: int = 1

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""; whether shared memory suffices is not judged."""
        spec, per_group = self.spec, self.spec.k // self.spec.groups
        if per_group % self.filters or (spec.c // spec.groups) % self.parts or self.filters % self.parts:
            return "filters or channels do not divide"
        if self.filters % self.shared:
            return f"{self.filters} filters are not whole vectors of {self.shared}"
        if self.warps % self.pixel_groups or self.filters // self.shared * self.pixel_groups < self.warps:
            return "warps do not divide pixels and filters, or there are more than these"
        if self.shared > 1 and self.warps > MAX_VECTOR_WARPS:
            return f"{self.warps} warps, at most {MAX_VECTOR_WARPS}"
        if self.staging is Staging.RUN and not self.run_fits:
            return "the input is not one run of 16-byte vectors"
        return self.obstacle_of_pixels

    @cached_property
    def obstacle_of_pixels(self) -> str:
        """What of that does not depend on filters, parts and warps."""
        if self.staging is Staging.ROWS and not self._rows_fit:
            return "tiles are not whole rows"
        if not 1 <= self.lane_pixels <= MAX_LANE_PIXELS[self.shared]:
            return f"{self.lane_pixels} pixels a lane, at most {MAX_LANE_PIXELS[self.shared]}"
        needed = -(-self.rows * self.pitch // WARP)
        return "pixel groups without pixels" if needed <= (self.pixel_groups - 1) * self.lane_pixels else ""

    @property
    def run_fits(self) -> Any:
        """Whether all maps of a block's channels are one run of whole vectors; of arrays an array."""
        spec, whole = self.spec, self.columns == self.out_size[1]
        counts = (self.part_channels, spec.c // spec.groups, spec.c)
        return reduce(and_, (count * spec.h * spec.w % 4 == 0 for count in counts), self.is_pointwise & whole)

    @property
    def _rows_fit(self) -> bool:
        if self.is_pointwise:
            return self.columns % self.vector == 0
        return self.columns == self.spec.out_w and self.spec.stride[1] in (1, 2)

    @cached_property
    def part_channels(self) -> int:
        """Input channels of a block."""
        return self.spec.c // self.spec.groups // self.parts

    @cached_property
    def vector(self) -> int:
        """Elements of a copy."""
        if self.staging is Staging.PLANES:
            return 1
        if self.staging is Staging.RUN:
            return 4
        width = self.in_size[1]
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

    @cached_property
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

    @cached_property
    def _axes(self) -> list[tuple[int, int, int]]:
        spec = self.spec
        return list(zip(spec.stride, (spec.r, spec.s), spec.dilation, strict=True))

    @cached_property
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

    @cached_property
    def lane_pixels(self) -> int:
        """Pixels of a lane."""
        return -(-self.rows * self.pitch // (WARP * self.pixel_groups))

    @property
    def places(self) -> int:
        """Pixels that a block computes for a filter, those between rows included."""
        return self.lane_pixels * WARP * self.pixel_groups

    @cached_property
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
    def farthest_tap(self) -> int:
        """Floats from a pixel's place to the last input that a tap reads."""
        return max(self.offset(r, s) for r, s in product(range(self.spec.r), range(self.spec.s)))

    @cached_property
    def input_floats(self) -> Any:
        """Shared memory of the input, as far as lanes without a pixel read."""
        farthest = (self.part_channels - 1) * self.channel_pitch + self.farthest_tap
        floats = largest(self.part_channels * self.channel_pitch + self.lead, farthest + self.places * self.step)
        return -(-floats // 4) * 4

    def shared_bytes(self, stride: Any) -> Any:
        """Shared memory of a block whose weights take `stride` times 16 bytes; of arrays an array."""
        sums = (self.parts > 1) * self.filters * self.places
        return 16 * stride + 4 * (self.input_floats + sums)

    @property
    def first_pair(self) -> int:
        """Where pairs begin among a block's weights, in 16 bytes."""
        return -(-(self.filters // self.shared + 1 + self.filters) // 4)

    @property
    def pair_units(self) -> int:
        """16-byte units of a pair: two values and their offsets, or two offsets and the values of all filters."""
        return self.shared // 2 + 1

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Tiles below and beside each other."""
        return -(-self.out_size[0] // self.rows), -(-self.out_size[1] // self.columns)

    @cached_property
    def grid(self) -> tuple[int, int, int]:
        """Blocks: parts, filters, tiles of all images."""
        return self.parts, self.spec.k // self.filters, self.tiles[0] * self.tiles[1] * self.spec.n

    @property
    def kernel(self) -> str:
        """The kernel's name; of grouped convolutions with the place of a copy's number in it."""
        name = kernel_name(self.shared, self.lane_pixels, self.step, self.spec.dtype)
        return name.replace(PREFIX.format(""), PREFIX) if is_grouped(self.spec) else name


def kernel_name(shared: int, lane_pixels: int, step: int, dtype: str) -> str:
    """The kernel for so many filters at a time and pixels of a lane, this step between these, and tensors of a type."""
    kind = f"vector{shared}" if shared > 1 else "data"
    return f"{PREFIX.format('')}{kind}_{lane_pixels}_{step}{OF_TYPE[dtype]}"
