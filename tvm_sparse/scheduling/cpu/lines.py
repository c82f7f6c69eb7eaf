"""Maps on whole cache lines: how a convolution's input lies so that each load of a kernel is one whole vector.

An image of NCHW has three channels of four begin within a cache line, and a tap one pixel to the right begins within a
vector: such a load touches two lines and takes twice as long. Here a tile is some output rows, `width` floats apart, in
whole vectors. Of what it reads there is a copy for each way in which a tap may lie to vectors, shifted so that the tap
begins with one, and each copy takes whole vectors. Taps whose distance is whole vectors share a copy: on rows of 16
floats a 3x3 kernel has three, one a column, and a 1x1 kernel has one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec


class Copy(NamedTuple):
    """Pixels of one phase of the padded input, without its first rows and columns."""

    phase_y: int
    phase_x: int
    down: int
    right: int


@dataclass(frozen=True)
class Lines:
    """How the output rows of a tile, a divisor of OH, and what they read lie in vectors of `lanes` floats.

    A row that is too long for the registers is cut into `parts` of whole vectors, of which the last may be shorter.
    With `held` registers have so many vectors of a tile at a time, and taps are read as they lie, across lines too.
    """

    spec: ConvSpec
    lanes: int
    rows: int
    width: int
    parts: int = 1
    held: int = 0

    @classmethod
    def of_rows(cls, spec: ConvSpec, lanes: int, rows: int, held: int) -> "Lines":
        """Rows one behind the other; their zeros at the right are the next ones' at the left, where the stride is 1."""
        right = (spec.s - 1) * spec.dilation[1] // spec.stride[1]
        shared = min(spec.padding[1], spec.padding[3]) if spec.stride[1] == 1 else 0
        return cls(spec, lanes, rows, spec.out_w + max(0, right - shared), held=held)

    @classmethod
    def of_row(cls, spec: ConvSpec, lanes: int, most_vectors: int) -> "Lines":
        """As few parts of a row as have so many vectors at most."""
        vectors = -(-spec.out_w // lanes)
        width = -(-vectors // -(-vectors // most_vectors)) * lanes
        return cls(spec, lanes, 1, width, -(-spec.out_w // width))

    @property
    def tiles(self) -> int:
        """Tiles of an image."""
        return self.spec.out_h // self.rows * self.parts

    def columns(self, part: int = 0) -> int:
        """Output pixels of a tile's row."""
        return self.spec.out_w if self.parts == 1 else min(self.width, self.spec.out_w - part * self.width)

    @cached_property
    def vectors(self) -> int:
        """Vectors of a tile's output pixels."""
        own = self.lanes * max(1, self.held)
        return -(-((self.rows - 1) * self.width + self.columns()) // own) * max(1, self.held)

    @cached_property
    def is_flat(self) -> bool:
        """Whether a tile reads the pixels that it writes, one row behind the other."""
        spec = self.spec
        is_pointwise = (spec.r, spec.s) == spec.stride == (1, 1) and not any(spec.padding)
        return is_pointwise and self.width * self.parts == spec.w

    @cached_property
    def is_direct(self) -> bool:
        """Whether the input lies so already."""
        tile, spec = self.rows * self.width, self.spec
        is_whole = tile == self.vectors * self.lanes and spec.h * spec.w % self.lanes == 0
        return self.is_flat and spec.dtype == FLOAT32 and is_whole

    @cached_property
    def copies(self) -> list[Copy]:
        """What a tile reads of a channel, where it does not lie so already."""
        return sorted({self._copy(*tap) for tap in self._taps()})

    @cached_property
    def copy_floats(self) -> int:
        """Floats of a copy, whole vectors."""
        last = max(place for *_, place in map(self._place, self._taps()))
        rows = last // self.width + self.rows if self.held else 0
        return -(-max(last + self.vectors * self.lanes, rows * self.width) // self.lanes) * self.lanes

    @property
    def channel(self) -> int:
        """Floats from a channel of a tile to the next."""
        return self.spec.h * self.spec.w if self.is_direct else len(self.copies) * self.copy_floats

    def places(self) -> np.ndarray:
        """Where taps (R, S) lie in a channel of a tile, relative to the output pixel: whole vectors."""
        found = np.zeros((self.spec.r, self.spec.s), np.int64)
        for tap in self._taps():
            index, place = self._place(tap)
            found[tap] = index * self.copy_floats + place
        return found

    def runs(self, columns: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Output pixels that lie side by side: vector, its first lane, how many, row and column of the first."""
        for vector in range(self.vectors):
            if self.width == self.spec.out_w:
                # Rows touch each other, in memory too.
                begin = vector * self.lanes
                yield vector, 0, min(self.lanes, self.rows * self.width - begin), *divmod(begin, self.width)
            else:
                for segment in self._segments(vector, columns):
                    yield vector, *segment

    def _segments(self, vector: int, columns: int) -> Iterator[tuple[int, int, int, int]]:
        begin = vector * self.lanes
        for row in range(begin // self.width, min(self.rows, -(-(begin + self.lanes) // self.width))):
            first = max(begin, row * self.width)
            end = min(begin + self.lanes, row * self.width + columns)
            if first < end:
                yield first - begin, end - first, row, first - row * self.width

    def _taps(self) -> Iterator[tuple[int, int]]:
        return ((r, s) for r in range(self.spec.r) for s in range(self.spec.s))

    def _copy(self, r: int, s: int) -> Copy:
        (rows, phase_y), (columns, phase_x) = self._steps(r, s)
        return Copy(phase_y, phase_x, 0, 0) if self.held else Copy(phase_y, phase_x, rows % self._period, columns)

    def _place(self, tap: tuple[int, int]) -> tuple[int, int]:
        """The copy that a tap reads, and from which of its floats on."""
        copy, ((rows, _), (columns, _)) = self._copy(*tap), self._steps(*tap)
        return self.copies.index(copy), (rows - copy.down) * self.width + columns - copy.right

    def _steps(self, r: int, s: int) -> tuple[tuple[int, int], tuple[int, int]]:
        (y, x), (stride_y, stride_x) = self.spec.dilation, self.spec.stride
        return divmod(r * y, stride_y), divmod(s * x, stride_x)

    @cached_property
    def _period(self) -> int:
        """So many rows are whole vectors."""
        return self.lanes // math.gcd(self.lanes, self.width)
