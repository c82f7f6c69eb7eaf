"""Runs of a few rows: thread blocks of 32 columns whose width need not divide that of the maps.

A warp on one row of 32 pixels reads and writes memory in whole lines; tiles of 16 of a map's 112 columns do so in
halves of lines and stage 1.7 floats a pixel, and 32 does not divide 112. But two maps side by side are seven times 32
columns: the columns of all images, one image after the other, are one line, and a block takes 32 of it in a band of
rows, over the end of an image too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from tvm_sparse.conv.conv2d_npq import Place, Runs, first_copy
from tvm_sparse.conv.input_footprint import lattice
from tvm_sparse.conv.spec import ConvSpec

# Columns of a block: a warp.
COLUMNS = 32


@dataclass(frozen=True)
class Strips(Runs):
    """How `runs.conv2d_runs` cuts the output into blocks of 32 columns and as many rows as give `length` pixels."""

    @property
    def wraps(self) -> bool:
        """No: a warp has one row."""
        return False

    @property
    def variant(self) -> str:
        """Its name."""
        return f"warp-rows{self.length}"

    @property
    def band(self) -> int:
        """Rows of a block."""
        return self.length // COLUMNS

    def serves(self, spec: ConvSpec) -> bool:
        """Whether bands and columns come out even, and blocks begin where copies do."""
        lanes, read = self.whole(spec).lanes(spec), lattice(spec)
        even = self.length % COLUMNS == 0 and spec.out_h % self.band == 0 and spec.n * spec.out_w % COLUMNS == 0
        plain = read.stride == (1, 1) and read.step == (1, 1)
        return even and plain and spec.out_w % lanes == 0 and spec.out_w > COLUMNS

    def count(self, spec: ConvSpec) -> int:
        """Blocks in all."""
        return spec.n * spec.out_h * spec.out_w // self.length

    def rows(self, spec: ConvSpec) -> int:
        """Rows of the input that a block needs."""
        return self.band + (spec.r - 1) * lattice(spec).dilation[0]

    def copies(self, spec: ConvSpec) -> int:
        """Copies of a row of a block's input, where it goes over the end of an image."""
        first = np.arange(spec.n * spec.out_w // COLUMNS) * COLUMNS
        start, end = (at // spec.out_w * self.pitch(spec) + at % spec.out_w for at in (first, first + COLUMNS - 1))
        return int(self._last_copy(spec, (end - start).max())) + 1

    def pitch(self, spec: ConvSpec) -> int:
        """Floats from one image to the next in a line of padded images, which share the padding between them."""
        lanes, (_, left, _, _) = self.whole(spec).lanes(spec), spec.padding
        right = spec.out_w + (spec.s - 1) * lattice(spec).dilation[1] - left - spec.w
        return -(-(spec.w + max(left, right)) // lanes) * lanes

    def source(self, spec: ConvSpec, run: tirx.Expr, row: tirx.Expr, copy: tirx.Expr) -> Place:
        """See `Runs`."""
        lanes, (y, first) = self.whole(spec).lanes(spec), self._start(spec, run)
        start, end = (self._stacked(spec, at) for at in (first, first + COLUMNS - 1))
        stacked, pitch = tirx.floordiv(start, lanes) + copy, self.pitch(spec) // lanes
        column = tirx.floormod(stacked, pitch) + first_copy(self, spec)
        # Only blocks over the end of an image need all copies; what others do not need is not read.
        column = tirx.Select(copy <= self._last_copy(spec, end - start), column, -1)
        return tirx.floordiv(stacked, pitch), y + row - spec.padding[0], column

    def staged(self, spec: ConvSpec, run: tirx.Expr, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """See `Runs`."""
        _, first = self._start(spec, run)
        column = self._stacked(spec, first + tirx.floormod(pixel, COLUMNS)) - self._stacked(spec, first)
        return tirx.floordiv(pixel, COLUMNS), column + self.whole(spec).lead(spec)

    def place(self, spec: ConvSpec, run: tirx.Expr, pixel: tirx.Expr, bounded: bool = False) -> Place:
        """See `Runs`; no pixel lies behind the last one."""
        y, first = self._start(spec, run)
        at = first + tirx.floormod(pixel, COLUMNS)
        return tirx.floordiv(at, spec.out_w), y + tirx.floordiv(pixel, COLUMNS), tirx.floormod(at, spec.out_w)

    def exists(self, spec: ConvSpec, run: tirx.Expr, pixel: tirx.Expr) -> None:
        """See `Runs`: all pixels do."""

    def _start(self, spec: ConvSpec, run: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """(first row, first column of the line) of a block.

        Blocks go through the columns of as few images as come out even, then through their bands.
        """
        images = COLUMNS // math.gcd(COLUMNS, spec.out_w)
        images = images if spec.n % images == 0 else spec.n
        across, bands = images * spec.out_w // COLUMNS, spec.out_h // self.band
        group = tirx.floordiv(run, across * bands)
        column = (group * across + tirx.floormod(run, across)) * COLUMNS
        return tirx.floormod(tirx.floordiv(run, across), bands) * self.band, column

    def _stacked(self, spec: ConvSpec, column: tirx.Expr) -> tirx.Expr:
        """Where the input of a column of the line begins in the line of padded images."""
        return tirx.floordiv(column, spec.out_w) * self.pitch(spec) + tirx.floormod(column, spec.out_w)

    def _last_copy(self, spec: ConvSpec, pixels: tirx.Expr | np.integer) -> tirx.Expr | np.integer:
        """The last copy that a block needs whose last pixel lies so far behind its first one."""
        tiles = self.whole(spec)
        return (pixels + tiles.lead(spec) + (spec.s - 1) * lattice(spec).dilation[1]) // tiles.lanes(spec)
