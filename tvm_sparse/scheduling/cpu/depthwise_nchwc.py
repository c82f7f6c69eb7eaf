"""Depthwise convolutions on CPUs whose tensors lie in blocks of channels: a vector of channels a pixel.

Outermost first::

    parallel over images, blocks of channels and groups of output rows, in either order
      for each row, each tile of its pixels: all taps; store with bias, residual and ReLU

It is `channels` without its transpositions, and nothing is copied: a pixel is read for as few multiply-adds as it
has taps, so a padded copy of it took up to 0.4 of the time (docs/lab/cpu-layouts.md, "What do blocks of channels gain
on a CPU?"). Rows of padding are left out, columns of it are asked for, which only the first and the last pixel of a
tile can be.
"""

from dataclasses import replace

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d import WEIGHT, padded, prim_func
from tvm_sparse.conv.conv2d_nchwc import filled
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import Columns, Layouts, blocked_arguments, output, views
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.blocked_space import BlockedSpace
from tvm_sparse.scheduling.cpu.channels import has_filter_a_channel
from tvm_sparse.scheduling.cpu.cost import depthwise_cycles, rounds_of_any
from tvm_sparse.scheduling.cpu.nchwc import in_registers, skip_padding, storing_pixels, tasks_in_order
from tvm_sparse.scheduling.cpu.nchwc_cut import fills_blocks
from tvm_sparse.scheduling.cpu.register_tile import depthwise_tile
from tvm_sparse.scheduling.space import Choose, divisors
from tvm_sparse.target.cpu_info import CpuInfo

# Taps that are unrolled at most; of more a row of them is at a time. For several rows LLVM keeps more pixels than there
# are registers: by one 5x5 take 0.27 to 0.96 of the time, 7x7 0.7 to 1.05, and 31x31 take LLVM 1 s, not 23.
UNROLLED_TAPS = 9


class DepthwiseNCHWcSpace(BlockedSpace):
    """The space of a convolution whose tensors all lie in blocks."""

    is_uniform = True

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int = 1):
        channels = layouts.filled(spec.c)
        spec = replace(spec, c=channels, k=channels, groups=channels)
        super().__init__(name, spec, cpu, layouts, threads)
        self._columns = Columns(spec.out_w, depthwise_tile(spec.out_w, cpu))

    def _unscheduled(self) -> tirx.PrimFunc:
        return conv2d_depthwise_nchwc(self.spec, self.layouts, self._columns)

    @staticmethod
    def writes(spec: ConvSpec, cpu: CpuInfo) -> bool:
        return cpu.has_block_kernels and has_filter_a_channel(spec) and fills_blocks(spec.c, cpu)

    @staticmethod
    def reads(_spec: ConvSpec, _cpu: CpuInfo) -> bool:
        return True

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight as (C / channels, R, S, channels)."""
        blocks = filled(weight, self.layouts.channels).reshape(-1, self.layouts.channels, self.spec.r, self.spec.s)
        return (np.ascontiguousarray(blocks.transpose(0, 2, 3, 1)),)

    def finished(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """`func`, whose last columns of a row are pixels before."""
        return storing_pixels(func, self.layouts.shape("y", self.spec.output_shape), self._columns)

    @property
    def rows(self) -> int:
        """Output rows of a task: threads end together."""
        return min(divisors(self.spec.out_h), key=lambda rows: (self._busiest_cycles(rows), -rows))

    def _busiest_cycles(self, rows: int) -> float:
        """Cycles of the thread that ends last."""
        spec = self.spec
        tasks = spec.n * (spec.c // self.layouts.channels) * (spec.out_h // rows)
        return rounds_of_any(tasks, self._threads) * depthwise_cycles(spec, self._cpu, self._columns.count, rows)

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        conv, out = map(sch.get_sblock, ("conv", "out"))
        n, block, y, x, lane = sch.get_loops(out)
        y, _ = sch.split(y, [None, self.rows])
        x, pixel = sch.split(x, [None, self._columns.tile])
        tasks = tasks_in_order(self.spec, block, y)
        sch.reorder(n, *tasks)
        outer = sch.fuse(n, *tasks)
        sch.parallel(outer)
        in_registers(sch, pixel, lane)
        sch.compute_at(conv, x, preserve_unit_loops=True)
        pixel, lane, r, s = sch.get_loops(conv)[-4:]
        sch.reorder(r, s, pixel, lane)
        rows_of_taps = [r] if self.spec.r * self.spec.s <= UNROLLED_TAPS else []
        in_registers(sch, *rows_of_taps, s, pixel, lane)
        init = sch.decompose_reduction(conv, r)
        sch.unroll(sch.get_loops(init)[-2])
        skip_padding(sch, conv, self.spec)


def conv2d_depthwise_nchwc(spec: ConvSpec, layouts: Layouts, columns: Columns) -> tirx.PrimFunc:
    """The form of a depthwise convolution whose tensors all lie in blocks; the weight is (C / c, R, S, c).

    ``conv`` has axes (n, block of channels, y, x, channel), with so many `columns`, and so has the output. Padding is
    asked for where it is read.
    """
    arguments, channels = blocked_arguments(spec, layouts), layouts.channels
    shape = (spec.c // channels, spec.r, spec.s, channels)
    weight = arguments[WEIGHT] = te.placeholder(shape, FLOAT32, name=WEIGHT)
    read = views(layouts, arguments)["x"]
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    r, s = (te.reduce_axis((0, extent), name) for extent, name in ((spec.r, "r"), (spec.s, "s")))

    def conv_at(n: tirx.Expr, block: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        place = (y * st_h + r * dil_h, columns.pixel(x) * st_w + s * dil_w)
        value = padded(spec, read, n, block * channels + lane, *place)
        return te.sum(value * weight[block, r, s, lane], axis=[r, s])

    sums = layouts.shape("y", (*spec.output_shape[:3], columns.count))
    conv = te.compute(sums, conv_at, name="conv")

    def sum_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        return conv[n, tirx.floordiv(k, channels), y, x, tirx.floormod(k, channels)]

    return prim_func(arguments, output(spec, layouts, arguments, sum_at, columns))
