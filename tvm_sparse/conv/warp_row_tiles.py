"""Warp-row tiles: thread blocks of a few rows of 32 columns whose width need not divide that of the maps.

A warp on one row of 32 pixels reads and writes memory in whole lines; tiles of 16 of a map's 112 columns do so in
halves of lines and stage 1.7 floats a pixel, and 32 does not divide 112. But two maps side by side are seven times 32
columns: the columns of all images, one image after the other, are one line, and a block takes 32 of it in a band of
rows, over the end of an image too.
"""

import math
from functools import cached_property

import numpy as np
from tvm import tirx

from tvm_sparse.conv.output_tiling import PixelTiling, Place

# Columns of a block: a warp.
COLUMNS = 32


class WarpRowTiles(PixelTiling):
    """Tiles of 32 columns and as many rows as give `pixels` outputs."""

    wraps = False

    @property
    def variant(self) -> str:
        return f"warp-rows{self.pixels}"

    @property
    def band(self) -> int:
        """Rows of outputs of a tile."""
        return self.pixels // COLUMNS

    @property
    def fits(self) -> bool:
        """Whether bands and columns come out even, and blocks begin where copies do."""
        spec = self.spec
        even = self.pixels % COLUMNS == 0 and spec.out_h % self.band == 0 and spec.n * spec.out_w % COLUMNS == 0
        plain = all(axis.stride == axis.step == 1 for axis in self.footprint)
        return even and plain and spec.out_w % self.lanes == 0 and spec.out_w > COLUMNS

    @property
    def count(self) -> int:
        return self.spec.pixels // self.pixels

    @property
    def input_rows(self) -> int:
        return self.band + self.footprint[0].halo

    @cached_property
    def copies(self) -> int:
        # As many as where a tile goes over the end of an image.
        width = self.spec.out_w
        first = np.arange(self.spec.n * width // COLUMNS) * COLUMNS
        start, end = (at // width * self._pitch + at % width for at in (first, first + COLUMNS - 1))
        return int(self._last_copy((end - start).max())) + 1

    def source(self, tile: tirx.Expr, row: tirx.Expr, copy: tirx.Expr) -> Place:
        y, first = self._start(tile)
        start, end = (self._stacked(at) for at in (first, first + COLUMNS - 1))
        stacked, pitch = tirx.floordiv(start, self.lanes) + copy, self._pitch // self.lanes
        column = tirx.floormod(stacked, pitch) + self.first_copy
        # Only blocks over the end of an image need all copies; what others do not need is not read.
        column = tirx.Select(copy <= self._last_copy(end - start), column, -1)
        return tirx.floordiv(stacked, pitch), y + row - self.spec.padding[0], column

    def first_tap(self, tile: tirx.Expr, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        _, first = self._start(tile)
        column = self._stacked(first + tirx.floormod(pixel, COLUMNS)) - self._stacked(first)
        return tirx.floordiv(pixel, COLUMNS), column + self.lead

    def place(self, tile: tirx.Expr, pixel: tirx.Expr, bounded: bool = False) -> Place:
        y, first = self._start(tile)
        at = first + tirx.floormod(pixel, COLUMNS)
        return tirx.floordiv(at, self.spec.out_w), y + tirx.floordiv(pixel, COLUMNS), tirx.floormod(at, self.spec.out_w)

    def _start(self, tile: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """(first row, first column of the line) of a tile.

        Tiles go through the columns of as few images as come out even, then through their bands.
        """
        images = COLUMNS // math.gcd(COLUMNS, self.spec.out_w)
        images = images if self.spec.n % images == 0 else self.spec.n
        across, bands = images * self.spec.out_w // COLUMNS, self.spec.out_h // self.band
        group = tirx.floordiv(tile, across * bands)
        column = (group * across + tirx.floormod(tile, across)) * COLUMNS
        return tirx.floormod(tirx.floordiv(tile, across), bands) * self.band, column

    @cached_property
    def _pitch(self) -> int:
        """Floats from one image to the next in a line of padded images, which share the padding between them."""
        left, width = self.spec.padding[1], self.spec.w
        right = self.spec.out_w + self.footprint[1].halo - left - width
        return -(-(width + max(left, right)) // self.lanes) * self.lanes

    def _stacked(self, column: tirx.Expr) -> tirx.Expr:
        """Where the input of a column of the line begins in the line of padded images."""
        return tirx.floordiv(column, self.spec.out_w) * self._pitch + tirx.floormod(column, self.spec.out_w)

    def _last_copy(self, pixels: tirx.Expr | np.integer) -> tirx.Expr | np.integer:
        """The last copy that a tile needs whose last pixel lies so far behind its first one."""
        return (pixels + self.lead + self.footprint[1].halo) // self.lanes
