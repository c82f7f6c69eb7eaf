"""How the output of a convolution is cut into tiles for thread blocks, and what of its input a tile needs.

A block stages the rows of the padded input that its tile reads in shared memory, several elements a copy; the last axes
of its stage ``pack`` are (row, copy, lane of a copy). Rows and columns are those of its `input_footprint`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tvm import tirx

from tvm_sparse.conv.input_footprint import AxisFootprint, input_footprint
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE

# Bytes of a copy to shared memory at most.
COPY_BYTES = 16
# (n, y, x) of a pixel.
Place = tuple[tirx.Expr, tirx.Expr, tirx.Expr]


@dataclass(frozen=True)
class OutputTiling(ABC):
    """One way to cut the output of `spec`."""

    spec: ConvSpec
    # Whether the pixels of a warp may lie on several rows.
    wraps: ClassVar[bool] = True

    @property
    @abstractmethod
    def variant(self) -> str:
        """Its name, part of the name of a search space."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Tiles in all."""

    @property
    @abstractmethod
    def input_rows(self) -> int:
        """Rows of the input that a tile needs, at most."""

    @property
    def row_pixels(self) -> int:
        """Outputs of a row for which a row of input is staged: all of them, unless tiles are narrower."""
        return self.spec.out_w

    @property
    def element_bytes(self) -> int:
        """Of an element of the input, which is staged as it is stored."""
        return STORAGE[self.spec.dtype].size_bytes

    @cached_property
    def footprint(self) -> tuple[AxisFootprint, AxisFootprint]:
        """What the convolution reads along (y, x)."""
        return input_footprint(self.spec)

    @cached_property
    def lanes(self) -> int:
        """Elements that are copied at once, 16 bytes or less: they never straddle a tile, a row or its padding.

        One where the taps skip columns throughout (a 1x1 kernel with stride 2): only what is read is copied.
        """
        (_, x), columns = self.footprint, self.row_pixels
        if x.step > 1:
            return 1
        most = COPY_BYTES // self.element_bytes
        step, span = columns * x.stride if columns < self.spec.out_w else most, x.span(columns)
        sizes = [lanes for lanes in (8, 4, 2, 1) if lanes <= most]
        return next(lanes for lanes in sizes if self.spec.w % lanes == 0 and step % lanes == 0 and span >= lanes)

    @cached_property
    def lead(self) -> int:
        """Columns before a tile's first that are copied with it, so that copies are aligned."""
        return -self.spec.padding[1] % self.lanes

    @cached_property
    def copies(self) -> int:
        """Copies of a row of a tile's input."""
        return -(-(self.lead + self.footprint[1].span(self.row_pixels)) // self.lanes)

    @property
    def width(self) -> int:
        """Columns of a tile's input, `lead` included, in whole copies."""
        return self.copies * self.lanes

    @property
    def first_copy(self) -> int:
        """Where a padded row of the input begins, in copies."""
        return -(self.spec.padding[1] + self.lead) // self.lanes


@dataclass(frozen=True)
class PixelTiling(OutputTiling):
    """Tiles of `pixels` outputs each, over the ends of rows or images."""

    pixels: int

    @abstractmethod
    def source(self, tile: tirx.Expr, row: tirx.Expr, copy: tirx.Expr) -> Place:
        """(n, y, column in copies) of what is staged at `row` and `copy`, in the padding too."""

    @abstractmethod
    def first_tap(self, tile: tirx.Expr, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """(row, column) of a pixel's first tap in what is staged."""

    @abstractmethod
    def place(self, tile: tirx.Expr, pixel: tirx.Expr, bounded: bool = False) -> Place:
        """(n, y, x) of a pixel of a tile; `bounded`, of the last one for pixels behind it."""

    def exists(self, tile: tirx.Expr, pixel: tirx.Expr) -> tirx.Expr | None:
        """Whether there is this pixel; None where there are all."""
        pixels = self.spec.pixels
        return None if pixels % self.pixels == 0 else tile * self.pixels + pixel < pixels
