"""An expansion and the depthwise convolution behind it in one kernel, on CPUs, by vectors of channels.

Outermost first::

    parallel over images, blocks of output rows, groups of blocks of channels
      for each input row that these read: copy all of it
      for each block of channels of the group
        for each row of these that the block reads: expand it, with padding, channels side by side
        for each output row: as in `channels`

Inverted residuals (Sandler et al. 2018, "MobileNetV2", section 3.3) widen few channels to many by a convolution of one
tap, and convolve each of the many by itself. What lies between is the largest tensor of the network. Written to memory
and read again, where there are several threads by other ones than wrote it, it takes longer than the arithmetic; here
it never leaves a core's cache.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.channels import ChannelSpace, serves
from tvm_sparse.scheduling.cpu.cost import rounds_of_any, transposed_cycles
from tvm_sparse.scheduling.cpu.fit import CpuFit
from tvm_sparse.scheduling.cpu.register_tile import best_tile
from tvm_sparse.scheduling.space import Choose, divisors
from tvm_sparse.scheduling.tir_writing import new_buffer, whole
from tvm_sparse.target.cpu_info import CpuInfo

# Arguments beside those of the depthwise convolution.
EXPANSION, OFFSETS = "expansion", "offsets"
# Stages: the copied input, and the sums of a tile of pixels.
READ, EXPANDED = "read", "expanded"
# Channels that an expansion reads at most: the lines that a tile reads of each fit a level-1 cache.
MOST_CHANNELS = 256


class ExpandedSpace(ChannelSpace):
    """The space of a depthwise convolution `spec` of what `expansion` computes, by blocks of a vector of channels.

    Its kernel takes the expansion's input, `expansion_constants`, and then what the depthwise convolution takes beside
    its input. Nothing of it is decided.
    """

    _variant = "expanded"

    def __init__(self, name: str, expansion: ConvSpec, spec: ConvSpec, cpu: CpuInfo, threads: int = 1):
        self.expansion = expansion
        # As many sums as half of the registers hide the latency of a multiply-add; more are of two lines of pixels.
        self._pixels = best_tile(spec.w, cpu.registers // 2)
        super().__init__(name, spec, cpu, cpu.lanes, threads)

    @staticmethod
    def serves(expansion: ConvSpec, spec: ConvSpec, cpu: CpuInfo) -> bool:
        """Whether a kernel can compute the depthwise convolution `spec` with what is before it, `expansion`."""
        has_one_tap = expansion.r * expansion.s == expansion.groups == 1 and not any(expansion.padding)
        is_plain = expansion.dtype == FLOAT32 and not expansion.residual and expansion.c <= MOST_CHANNELS
        return has_one_tap and is_plain and expansion.output_shape == spec.input_shape and serves(spec, cpu.lanes)

    def expansion_constants(self, weight: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The expansion's weight (K, C, 1, 1) as (K / channels, C, channels), and its bias as (K / channels, channels).

        Without a bias that is 0.
        """
        blocks = weight.reshape(self._blocks, self._channels, self.expansion.c).transpose(0, 2, 1)
        offsets = np.zeros(self.spec.c, np.float32) if bias is None else bias
        return np.ascontiguousarray(blocks), offsets.reshape(self._blocks, self._channels)

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        rows, group = self.task
        n, block, y = sch.get_loops(sch.get_sblock("out"))
        y, row = sch.split(y, [None, rows])
        group, block = sch.split(block, [None, group])
        sch.reorder(n, y, group, block, row)
        outer = sch.fuse(n, y, group)
        sch.parallel(outer)
        for stage, loop in (("conv", row), ("pack", block), (READ, outer)):
            sch.compute_at(sch.get_sblock(stage), loop, preserve_unit_loops=True)

    @cached_property
    def task(self) -> tuple[int, int]:
        """Output rows and blocks of channels of a task: rows that fit a cache; such that threads end at once."""
        rows = self._fitting_rows(self.spec.out_h)
        offered = ((each, blocks) for each in rows for blocks in divisors(self._blocks))
        return min(offered, key=lambda task: (self._busiest_of(*task), -task[0]))

    def _busiest_of(self, rows: int, blocks: int) -> float:
        """Cycles of the thread that ends last, whose tasks have so many blocks of channels."""
        spec, c, fit = self.spec, self.expansion.c, CpuFit.of(self._cpu)
        tasks = spec.n * (spec.out_h // rows) * (self._blocks // blocks)
        copied = fit.copy_cycles * self._rows_of(rows) * spec.w * c / self._channels
        computed = blocks * transposed_cycles(spec, self._cpu, rows, c * fit.product_cycles)
        return rounds_of_any(tasks, self._threads) * (computed + copied)

    def _arguments(self) -> dict[str, tuple[tuple[int, ...], str]]:
        own = {
            "x": (self.expansion.input_shape, FLOAT32),
            EXPANSION: ((self._blocks, self.expansion.c, self._channels), FLOAT32),
            OFFSETS: ((self._blocks, self._channels), FLOAT32),
        }
        return {**own, **super()._arguments()}

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        spec = self.spec
        read = new_buffer(READ, (spec.n, self._rows * self.expansion.c * spec.w))
        expanded = new_buffer(EXPANDED, (spec.n, self._blocks, self._rows, self._pixels * self._channels))
        with T.grid(spec.n, self._rows) as loops, T.sblock(READ):
            self._write_read(arguments["x"], read, *T.axis.remap("SS", loops))
        super()._write({**arguments, READ: read, EXPANDED: expanded})

    def _write_read(self, x: tirx.Var, read: tirx.Var, n: tirx.Expr, row: tirx.Expr) -> None:
        """Copy a row of all channels, which tiles of its pixels read one after the other."""
        spec, (st_h, st_w), c, top = self.spec, self.expansion.stride, self.expansion.c, self.spec.padding[0]
        vector = min(self._channels, spec.w)
        T.reads(whole(x, n))
        T.writes(self._row(read, n, row))

        def copy(channel: tirx.Expr) -> None:
            with T.serial(0, -(-spec.w // vector)) as part, T.vectorized(vector) as lane:
                column = tirx.min(part * vector, spec.w - vector) + lane
                value = x[n, channel, (row - top) * st_h, column * st_w]
                T.buffer_store(read, value, [n, (row * c + channel) * spec.w + column])

        with T.If(tirx.all(row >= top, row < top + spec.h)), T.Then(), T.serial(0, c) as channel:
            copy(channel)

    def _row(self, read: tirx.Var, n: tirx.Expr, row: tirx.Expr) -> object:
        """The region that a row is copied to."""
        length = self.expansion.c * self.spec.w
        return read[n, row * length : row * length + length]

    def _read_by_pack(self, arguments: dict[str, tirx.Var], n: tirx.Expr, block: tirx.Expr, row: tirx.Expr) -> list:
        return [
            self._row(arguments[READ], n, row),
            whole(arguments[EXPANSION], block),
            whole(arguments[OFFSETS], block),
        ]

    def _write_row(
        self, arguments: dict[str, tirx.Var], packed: tirx.Var, place: tuple[tirx.Expr, ...], first: tirx.Expr
    ) -> None:
        """Expand the row `place` = (image, block, row with padding) to where in `packed` it begins."""
        c, channels, copied, (n, block, row) = self.expansion.c, self._channels, self._copied_columns, place
        weight, sums, after = arguments[EXPANSION], arguments[EXPANDED], replace(self.expansion, bias=False)
        tile = min(self._pixels, copied)
        with T.serial(0, -(-copied // tile)) as part:
            start = tirx.min(part * tile, copied - tile)
            for pixel in range(tile):
                with T.vectorized(channels) as lane:
                    T.buffer_store(sums, arguments[OFFSETS][block, lane], [n, block, row, pixel * channels + lane])
            with T.serial(0, c) as channel:
                for pixel in range(tile):
                    with T.vectorized(channels) as lane:
                        index = [n, block, row, pixel * channels + lane]
                        value = arguments[READ][n, (row * c + channel) * self.spec.w + start + pixel]
                        T.buffer_store(sums, sums[tuple(index)] + value * weight[block, channel, lane], index)
            for pixel in range(tile):
                with T.vectorized(channels) as lane:
                    value = epilogue(after, {}, sums[n, block, row, pixel * channels + lane], [])
                    T.buffer_store(packed, value, [n, block, first + (start + pixel) * channels + lane])
