"""Depthwise convolutions on CPUs by vectors of channels, transposed as rows are read and as they are stored.

Outermost first::

    parallel over images, blocks of channels, blocks of output rows
      for each input row that these read: copy it with padding, channels side by side
      for each output row
        for each tile of pixels: all taps, a vector of channels a pixel
        copy the row to the output with bias, residual and ReLU

Vectors along rows (`rows`) have idle lanes on small maps, and columns with a stride are split by phases first,
float by float. Here any pixel of any map is a full vector, and strides cost nothing. The price is that all of the input
and of the output is transposed, four pixels at a time in registers (`codegen.cpu.transposed_columns`), which takes
little longer than to read it.
"""

from functools import partial

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import WEIGHT, epilogue
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import SQUARE, TRANSPOSE
from tvm_sparse.scheduling.cpu.cost import rounds, rounds_of_any, transposed_cycles
from tvm_sparse.scheduling.cpu.fit import CpuFit
from tvm_sparse.scheduling.cpu.register_tile import best_tile
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, divisors
from tvm_sparse.scheduling.tir_writing import new_buffer, whole, written_function
from tvm_sparse.target.cpu_info import CpuInfo

# Pixels of a tile at most: their sums and a row of taps fit the registers.
PIXELS = 8


class ChannelSpace(HandMadeSpace):
    """The space of blocks of so many `channels`, where it `serves` a convolution, by so many threads."""

    _variant = "channels"

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, channels: int, threads: int = 1):
        self.spec, self._cpu, self._channels, self._threads = spec, cpu, channels, threads
        self._blocks = spec.c // channels
        self._rows, self._columns = _read(spec)
        self._copied_columns = _copied_columns(spec)
        make_func = partial(written_function, spec, self._arguments(), self._write)
        super().__init__(name, f"{self._variant}{channels}", make_func, fold=False)

    def _arguments(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shapes and types of what stands for the weight."""
        return {WEIGHT: ((self._blocks, self.spec.r, self.spec.s, self._channels), FLOAT32)}

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight as (C / channels, R, S, channels)."""
        blocks = weight.reshape(self._blocks, self._channels, self.spec.r, self.spec.s)
        return (np.ascontiguousarray(blocks.transpose(0, 2, 3, 1)),)

    @property
    def imbalance(self) -> float:
        """How many times as long as one thread's share of the work its threads take."""
        tasks = self._tasks(self._best(self.spec.out_h, self._threads))
        return rounds(tasks, self._threads) * self._threads / tasks

    def apply(self, sch: Schedule, choose: Choose) -> None:
        best, offered = partial(self._best, threads=self._threads), divisors(self.spec.out_h)
        rows = self.decide_most(choose, "rows", offered, best(offered[-1]), best)
        n, block, y = sch.get_loops(sch.get_sblock("out"))
        y, row = sch.split(y, [None, rows])
        outer = sch.fuse(n, block, y)
        sch.parallel(outer)
        sch.compute_at(sch.get_sblock("conv"), row, preserve_unit_loops=True)
        sch.compute_at(sch.get_sblock("pack"), outer, preserve_unit_loops=True)

    def _best(self, most: int, threads: int) -> int:
        """Output rows of a task, `most` at most, that fit a cache and let threads end at once."""
        return min(self._fitting_rows(most), key=lambda rows: (self._busiest_cycles(rows, threads), -rows))

    def _fitting_rows(self, most: int) -> list[int]:
        """Output rows that a task may have, `most` at most: one, and what fits a cache."""
        fitting = CpuFit.of(self._cpu).task_bytes // (self._columns * self._channels * 4)
        return [each for each in divisors(self.spec.out_h, most) if each == 1 or self._rows_of(each) <= fitting]

    def _tasks(self, rows: int) -> int:
        """How many there are of so many output rows."""
        return self.spec.n * self._blocks * (self.spec.out_h // rows)

    def _busiest_cycles(self, rows: int, threads: int) -> float:
        """Cycles of the thread that ends last."""
        pixel_cycles = CpuFit.of(self._cpu).transpose_cycles
        return rounds_of_any(self._tasks(rows), threads) * transposed_cycles(self.spec, self._cpu, rows, pixel_cycles)

    def _rows_of(self, rows: int) -> int:
        """Rows of the input that so many of the output read."""
        return self._rows - (self.spec.out_h - rows) * self.spec.stride[0]

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        """The body of the function: stages ``pack``, ``conv`` and ``out``, each a row of a block of channels."""
        spec, channels = self.spec, self._channels
        packed = new_buffer("packed", (spec.n, self._blocks, self._rows * self._columns * channels))
        sums = new_buffer("sums", (spec.n, self._blocks, spec.out_h * spec.out_w * channels))
        with T.grid(spec.n, self._blocks, self._rows) as loops, T.sblock("pack"):
            self._write_pack(arguments, packed, *T.axis.remap("SSS", loops))
        with T.grid(spec.n, self._blocks, spec.out_h) as loops, T.sblock("conv"):
            self._write_conv(arguments, packed, sums, *T.axis.remap("SSS", loops))
        with T.grid(spec.n, self._blocks, spec.out_h) as loops, T.sblock("out"):
            self._write_out(arguments, sums, *T.axis.remap("SSS", loops))

    def _write_pack(
        self, arguments: dict[str, tirx.Var], packed: tirx.Var, n: tirx.Expr, block: tirx.Expr, row: tirx.Expr
    ) -> None:
        """A row of a block of channels, with zeros around it."""
        spec, channels = self.spec, self._channels
        top, left = spec.padding[0], spec.padding[1]
        right = left + self._copied_columns
        first, length = row * (self._columns * channels), self._columns * channels
        T.reads(*self._read_by_pack(arguments, n, block, row))
        T.writes(packed[n, block, first : first + length])

        def fill(begin: int, end: int) -> None:
            if begin < end:
                with T.serial(begin, end) as column, T.vectorized(channels) as lane:
                    T.buffer_store(packed, tirx.const(0.0, FLOAT32), [n, block, first + column * channels + lane])

        fill(0, left)
        fill(right, self._columns)
        with T.If(tirx.all(row >= top, row < top + spec.h)):
            with T.Then():
                self._write_row(arguments, packed, (n, block, row), first + left * channels)
            with T.Else():
                fill(left, right)

    def _read_by_pack(self, arguments: dict[str, tirx.Var], n: tirx.Expr, _block: tirx.Expr, _row: tirx.Expr) -> list:
        """Regions that `_write_row` reads."""
        return [whole(arguments["x"], n)]

    def _write_row(
        self, arguments: dict[str, tirx.Var], packed: tirx.Var, place: tuple[tirx.Expr, ...], first: tirx.Expr
    ) -> None:
        """Copy the row `place` = (image, block, row with padding) of the input to where in `packed` it begins."""
        channels, copied, (n, block, row) = self._channels, self._copied_columns, place
        y = row - self.spec.padding[0]
        with T.serial(0, -(-copied // SQUARE)) as part:
            start = tirx.min(part * SQUARE, copied - SQUARE)
            with T.serial(0, SQUARE, annotations={TRANSPOSE: 1}) as column, T.vectorized(channels) as lane:
                value = arguments["x"][n, block * channels + lane, y, start + column]
                T.buffer_store(packed, value, [n, block, first + (start + column) * channels + lane])

    def _write_conv(
        self,
        arguments: dict[str, tirx.Var],
        packed: tirx.Var,
        sums: tirx.Var,
        n: tirx.Expr,
        block: tirx.Expr,
        y: tirx.Expr,
    ) -> None:
        """The sums of a row, some pixels at a time."""
        spec, channels, weight = self.spec, self._channels, arguments[WEIGHT]
        (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
        length = self._columns * channels
        source, to = y * (st_h * length), y * (spec.out_w * channels)
        T.reads(packed[n, block, source : source + ((spec.r - 1) * dil_h + 1) * length], whole(weight, block))
        T.writes(sums[n, block, to : to + spec.out_w * channels])
        tile = best_tile(spec.out_w, PIXELS)
        parts = -(-spec.out_w // tile)
        with T.serial(0, parts) as part:
            start = tirx.min(part * tile, spec.out_w - tile)
            for pixel in range(tile):
                with T.vectorized(channels) as lane:
                    value = tirx.const(0.0, FLOAT32)
                    for r, s in np.ndindex(spec.r, spec.s):
                        column = (start + pixel) * st_w + s * dil_w
                        place = source + r * dil_h * length + column * channels + lane
                        value = value + packed[n, block, place] * weight[block, r, s, lane]
                    T.buffer_store(sums, value, [n, block, to + (start + pixel) * channels + lane])

    def _write_out(
        self, arguments: dict[str, tirx.Var], sums: tirx.Var, n: tirx.Expr, block: tirx.Expr, y: tirx.Expr
    ) -> None:
        """Store a row."""
        spec, channels = self.spec, self._channels
        first, source = block * channels, y * (spec.out_w * channels)
        stored = (n, slice(first, first + channels), y, slice(0, spec.out_w))
        bias = [arguments["bias"][stored[1]]] if spec.bias else []
        residual = [arguments["residual"][stored]] if spec.residual else []
        T.reads(sums[n, block, source : source + spec.out_w * channels], *bias, *residual)
        T.writes(arguments["y"][stored])
        with T.serial(0, -(-spec.out_w // SQUARE)) as part:
            start = tirx.min(part * SQUARE, spec.out_w - SQUARE)
            with T.serial(0, SQUARE, annotations={TRANSPOSE: 1}) as column, T.vectorized(channels) as lane:
                index = [n, first + lane, y, start + column]
                value = sums[n, block, source + (start + column) * channels + lane]
                T.buffer_store(arguments["y"], epilogue(spec, arguments, value, index), index)


def serves(spec: ConvSpec, channels: int) -> bool:
    """Whether a convolution `is_depthwise` and splits into blocks of so many channels, which are whole squares."""
    return is_depthwise(spec) and not spec.c % channels and not channels % SQUARE


def is_depthwise(spec: ConvSpec) -> bool:
    """Whether it `has_filter_a_channel`, and rows are four pixels or more: the last tile computes some pixels again."""
    return has_filter_a_channel(spec) and min(spec.out_w, _copied_columns(spec)) >= SQUARE


def has_filter_a_channel(spec: ConvSpec) -> bool:
    """Whether there is a filter of several taps a channel, in float32: TVM multiplies by a single tap in place."""
    return spec.groups == spec.c == spec.k and spec.dtype == FLOAT32 and spec.r * spec.s > 1


def _read(spec: ConvSpec) -> tuple[int, int]:
    """Rows and columns of the padded input up to the last ones that taps read."""
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    return (spec.out_h - 1) * st_h + (spec.r - 1) * dil_h + 1, (spec.out_w - 1) * st_w + (spec.s - 1) * dil_w + 1


def _copied_columns(spec: ConvSpec) -> int:
    """Columns of the input, from the first one on, that taps read."""
    return min(spec.w, _read(spec)[1] - spec.padding[1])
