"""Depthwise convolutions of integers of eight bits: an instruction multiplies four rows of a filter.

Bytes of four rows of pixels are interleaved, so that those of a pixel and a channel are one int32, whose products with
four taps of a column of the filter an instruction adds up. They serve all output rows that these rows are enough for:
two of a 3x3 filter. Of 16 pixels' sums each of four vectors has every fourth: packing them as bytes brings the pixels
back in order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.byte_form import ByteForm, starts
from tvm_sparse.conv.codes import FOUR
from tvm_sparse.conv.conv2d import epilogue
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.byte_codes import codes_of
from tvm_sparse.scheduling.cpu.byte_copies import layer_function, pixels_of_four
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit
from tvm_sparse.scheduling.cpu.byte_vectors import INT32, pixels_at
from tvm_sparse.scheduling.cpu.line_kernel import Arguments
from tvm_sparse.scheduling.tir_writing import divided, either, new_buffer, whole

# Of a lane of 128 bits, in which instructions interleave.
_LANE = 16
# A task's rows of a four of channels, packed, which the level-1 cache holds.
PACKED_BYTES = 1 << 14


@dataclass(frozen=True)
class ByteDepthwiseKernel:
    """A kernel for `spec` with tasks of so many fours of channels, a divisor; with `form` it is one of a network."""

    spec: ConvSpec
    unit: ByteUnit
    task_fours: int
    form: ByteForm | None = None

    @property
    def fours(self) -> int:
        """Of channels."""
        return -(-self.spec.k // FOUR)

    @property
    def _row_fours(self) -> int:
        """Fours of rows that a filter needs."""
        return -(-self.spec.r // FOUR)

    @cached_property
    def _tile_rows(self) -> int:
        """Output rows that as many fours of input rows are enough for."""
        enough = (FOUR * self._row_fours - self.spec.r) // self.spec.stride[0] + 1
        return min(self.spec.out_h, enough)

    @cached_property
    def _row(self) -> tuple[int, int]:
        """Phases of columns and columns, whole vectors, of a packed row."""
        spec, stride = self.spec, self.spec.stride[1]
        lanes = self.unit.lanes
        columns = max(spec.out_w, lanes) + FOUR * ((FOUR - 1 + (spec.s - 1) // stride) // FOUR)
        return min(stride, spec.s), -(-columns // lanes) * lanes

    @cached_property
    def _rows(self) -> int:
        """Output rows of a task."""
        read = PACKED_BYTES // (4 * math.prod(self._row))
        most = max(0, read - FOUR * self._row_fours) // self.spec.stride[0] + self._tile_rows
        return max(self._tile_rows, -(-self.spec.out_h // -(-self.spec.out_h // most)))

    @cached_property
    def _packed_shape(self) -> tuple[int, int, int]:
        """Rows, phases of columns, and columns of what a task packs of four channels."""
        return (self._rows - self._tile_rows) * self.spec.stride[0] + FOUR * self._row_fours, *self._row

    def packed(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """Taps (fours, rows of a tile, fours of rows, S, 4) of four rows, what sums begin with, and stages' factors."""
        (k, _, r, s), m, behind = weight.shape, self._tile_rows, (0, -self.spec.k % FOUR)
        taps = np.zeros((self.fours * FOUR, m, self._row_fours * FOUR, s), np.int8)
        for row in range(m):
            taps[:k, row, row * self.spec.stride[0] :][:, :r] = weight[:, 0]
        taps = taps.reshape(self.fours, FOUR, m, self._row_fours, FOUR, s).transpose(0, 2, 3, 5, 1, 4)
        start = starts(self.form, weight, self.spec.least + self.unit.moved)
        numbers = self.form.numbers(k) if self.form is not None else {}
        values = np.ascontiguousarray(taps).view(np.int32)[..., 0]
        return values, np.pad(start, behind).astype(np.int32), *(np.pad(each, behind) for each in numbers.values())

    @property
    def _stages(self) -> tuple:
        return () if self.form is None else self.form.stages

    def written(self) -> tirx.PrimFunc:
        """The function with arguments x, the arrays of `packed`, [bias], [residual], y; no bias with stages."""
        taps, channels = (self.fours, self._tile_rows, self._row_fours, self.spec.s, FOUR), self.fours * FOUR
        weight = {"values": (taps, INT32), "start": ((channels,), INT32)}
        return layer_function(self.spec, self.form, weight, channels, self._write)

    def _write(self, arguments: Arguments) -> None:
        spec, rows, parts, lanes = self.spec, self._rows, -(-self.spec.out_h // self._rows), self.unit.lanes
        with T.parallel(spec.n * self.fours // self.task_fours * parts) as task, T.sblock("conv"):
            T.reads(*(whole(each) for name, each in arguments.items() if name != "y"))
            T.writes(whole(arguments["y"]))
            planes, part = divided(task, parts)
            # The last task of a plane, tile of a task and vector of a row overlap the ones before.
            first_row = tirx.min(part * rows, spec.out_h - rows)
            packed = new_buffer("packed", self._packed_shape, dtype=INT32)
            self._clear(packed)
            with T.serial(self.task_fours) as plane:
                image, four = divided(planes * self.task_fours + plane, self.fours)
                self._pack(arguments["x"], (image, four), first_row, packed)
                with T.serial(-(-rows // self._tile_rows)) as tile, T.serial(-(-spec.out_w // lanes)) as vector:
                    row = tirx.min(tile * self._tile_rows, rows - self._tile_rows)
                    column = tirx.min(vector * lanes, max(0, spec.out_w - lanes))
                    for each in range(self._tile_rows):
                        sums = self._sums(arguments, packed, four, row, each, column)
                        self._store(arguments, sums, image, four, first_row + row + each, column)

    def _clear(self, packed: tirx.Var) -> None:
        """Set what a task packs to zeros, which are codes of their own: they stay around the image."""
        (rows, phases, columns), unit = self._packed_shape, self.unit
        with T.serial(rows) as row, T.serial(phases) as phase, T.serial(columns // unit.lanes) as vector:
            T.buffer_store(packed, unit.zeros(self.spec.least), [row, phase, unit.at(vector * unit.lanes)])

    def _pack(self, x: tirx.Var, plane: tuple[tirx.Expr, tirx.Expr], first_row: tirx.Expr, packed: tirx.Var) -> None:
        """Write the input rows that a task reads, a phase of columns after the other."""
        spec, stride = self.spec, self.spec.stride
        with T.serial(self._packed_shape[0]) as row:
            source = first_row * stride[0] + row - spec.padding[0]

            def copy() -> None:
                for phase in range(self._packed_shape[1]):
                    for to, count in self._runs(phase):
                        place = (*plane, source, to * stride[1] + phase - spec.padding[1])
                        pixels = pixels_of_four(x, place, count, stride[1], spec if self.form is None else None)
                        T.buffer_store(packed, self.unit.pixels(pixels, count), [row, phase, pixels_at(to, count)])

            either(tirx.all(source >= 0, source < spec.h), copy)

    def _runs(self, phase: int) -> Iterator[tuple[int, int]]:
        """Packed columns of a phase that lie in the image, as the longest vectors that fit: the first, and how many."""
        left, stride, width = self.spec.padding[1], self.spec.stride[1], self.spec.w
        inside = [j for j in range(self._packed_shape[2]) if 0 <= j * stride + phase - left < width]
        lanes = min(self.unit.lanes, 1 << max(0, len(inside).bit_length() - 1))
        return ((inside[0] + min(i, len(inside) - lanes), lanes) for i in range(0, len(inside), lanes))

    def _sums(
        self,
        arguments: Arguments,
        packed: tirx.Var,
        four: tirx.Expr,
        tile_row: tirx.Expr,
        row: int,
        column: tirx.Expr,
    ) -> list[tirx.Expr]:
        """The sums of 16 pixels of a row of a tile, as four vectors, of which each has every fourth pixel."""
        stride, unit = self.spec.stride, self.unit
        sums = [self._of_channels(arguments["start"], four)] * FOUR
        for group, s, j in product(range(self._row_fours), range(self.spec.s), range(FOUR)):
            shift, quarter = divmod(j + s // stride[1], FOUR)
            first, pixels = tile_row * stride[0] + FOUR * group, unit.at(column + FOUR * shift)
            # LLVM computes what is the same once.
            rows = [packed[first + i, s % stride[1], pixels] for i in range(FOUR)]
            taps = self._of_channels(arguments["values"], four, row, group, s)
            sums[j] = unit.multiply(sums[j], self._of_rows(rows, quarter), taps)
        return sums

    def _store(
        self,
        arguments: Arguments,
        sums: list[tirx.Expr],
        image: tirx.Expr,
        four: tirx.Expr,
        row: tirx.Expr,
        column: tirx.Expr,
    ) -> None:
        """Store 16 pixels of a row, whose sums are in four vectors."""
        spec, unit, lanes = self.spec, self.unit, self.unit.lanes
        count = min(lanes, spec.out_w)
        if self.form is not None and self._stages:
            index, residual = (image, four, row, column), list[tirx.Expr]()
            if "residual" in arguments:
                rows = [unit.loaded(arguments["residual"], index, 0, count), *[unit.all_of(0)] * (FOUR - 1)]
                residual = [self._of_rows(rows, quarter) for quarter in range(FOUR)]
            codes = codes_of(unit, self.form, sums, lambda name, _: self._of_channels(arguments[name], four), residual)
            unit.store(arguments["y"], index, tirx.reinterpret(unit.ints, codes), 0, count)
            return
        by_channel = new_buffer("by_channel", (FOUR, lanes), dtype=INT32)
        for channel in range(FOUR):
            places = [lanes * (pixel % FOUR) + pixel // FOUR * FOUR + channel for pixel in range(lanes)]
            T.buffer_store(by_channel, tirx.Shuffle(sums, places), [channel, unit.at(0)])
        with T.serial(tirx.min(FOUR, spec.k - four * FOUR)) as channel, T.vectorized(count) as lane:
            index = (image, four * FOUR + channel, row, column + lane)
            value = epilogue(spec, arguments, by_channel[channel, lane].astype(FLOAT32), index)
            T.buffer_store(arguments["y"], value, index)

    def _of_channels(self, x: tirx.Var, four: tirx.Expr, *index: int) -> tirx.Expr:
        """Of four channels a number each, again and again."""
        place = [four, *index, tirx.Ramp(0, 1, FOUR)] if index else [tirx.Ramp(four * FOUR, 1, FOUR)]
        times = self.unit.lanes // FOUR
        return tirx.Shuffle([tirx.BufferLoad(x, place)] * times, list(range(FOUR)) * times)

    def _of_rows(self, rows: list[tirx.Expr], quarter: int) -> tirx.Expr:
        """Of four vectors of int32 the bytes in one `quarter` of each lane, row by row."""
        rows = [tirx.reinterpret(self.unit.bytes, each) for each in rows]
        first, second = (self._interleaved(rows[i], rows[i + 1], quarter // 2, 1) for i in (0, 2))
        return tirx.reinterpret(self.unit.ints, self._interleaved(first, second, quarter % 2, 2))

    def _interleaved(self, first: tirx.Expr, second: tirx.Expr, half: int, size: int) -> tirx.Expr:
        """Elements of `size` bytes of two vectors in turns, those of the first or second `half` of each lane."""
        bytes_ = FOUR * self.unit.lanes
        starts = [
            lane + half * _LANE // 2 + element + vector * bytes_
            for lane in range(0, bytes_, _LANE)
            for element in range(0, _LANE // 2, size)
            for vector in range(2)
        ]
        return tirx.Shuffle([first, second], [start + byte for start in starts for byte in range(size)])
