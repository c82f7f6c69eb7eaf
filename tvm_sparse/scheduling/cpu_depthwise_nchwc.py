"""Depthwise convolutions on CPUs whose tensors lie in blocks of channels: a vector of channels a pixel.

Outermost first::

    parallel over images, blocks of channels, groups of output rows
      copy what these rows read, with padding
      for each row, each tile of its pixels: all taps; store with bias, residual and ReLU

It is `cpu_channels` without its transpositions.
"""

from dataclasses import replace
from functools import partial

import numpy as np
from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d_depthwise_nchwc import conv2d_depthwise_nchwc
from tvm_sparse.conv.conv2d_nchwc import filled
from tvm_sparse.conv.nchwc import Layouts
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_channels import CACHE_BYTES, is_depthwise
from tvm_sparse.scheduling.cpu_cuts import rounds_of_any, rows_packed_again
from tvm_sparse.scheduling.cpu_nchwc import in_registers, skip_padding
from tvm_sparse.scheduling.cpu_nchwc_cut import fills_blocks
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, divisors
from tvm_sparse.target.cpu_info import CpuInfo

# Pixels of a tile: their sums hide a multiply-add's latency, and fit the registers beside the weights of a row of taps.
LEAST_PIXELS, MOST_PIXELS = 4, 14
# The share of padding in what is read from which on it pays to ask. 5x5 on 7x7 takes 0.8 of the time, 3x3 there 0.86,
# and 5x5 of every other pixel of 28x28, of which 0.04 are padding, 1.1 times as long (a Zen 5).
LEAST_PADDING = 0.08
# How long copying a vector takes, in that of a multiply-add.
COPYING = 2


class DepthwiseNCHWcSpace(HandMadeSpace):
    """The space of a convolution that it `serves`, whose tensors all lie in blocks. Nothing is decided."""

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int = 1):
        channels = layouts.filled(spec.c)
        spec = replace(spec, c=channels, k=channels, groups=channels)
        self.spec, self._lanes, self._threads = spec, cpu.lanes, threads
        super().__init__(name, "nchwc", partial(conv2d_depthwise_nchwc, spec, layouts), fold=False)

    @staticmethod
    def serves(spec: ConvSpec, cpu: CpuInfo) -> bool:
        """Whether it can be computed so: channels fill vectors, and a row of pixels is cut into tiles.

        Only with AVX-512 and AVX2, where it was measured.
        """
        is_whole = fills_blocks(spec.c, cpu) and divisors(spec.out_w, MOST_PIXELS)[-1] >= LEAST_PIXELS
        return cpu.has_block_kernels and is_depthwise(spec) and is_whole

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight as (C / channels, R, S, channels)."""
        blocks = filled(weight, self._lanes).reshape(-1, self._lanes, self.spec.r, self.spec.s)
        return (np.ascontiguousarray(blocks.transpose(0, 2, 3, 1)),)

    @property
    def rows(self) -> int:
        """Output rows of a task: what they read fits a cache, and threads end together."""
        return min(filter(self._fits, divisors(self.spec.out_h)), key=lambda rows: (self._time(rows), -rows))

    def _fits(self, rows: int) -> bool:
        return rows == 1 or 4 * self._lanes * self._read(rows) <= CACHE_BYTES

    def _read(self, rows: int) -> float:
        """Pixels of the input that so many rows of the output read."""
        spec = self.spec
        return (rows + rows_packed_again(spec)) * spec.stride[0] * spec.padded_shape[3]

    def _time(self, rows: int) -> float:
        """Of the busiest thread, in multiply-adds of a vector."""
        spec = self.spec
        tasks = spec.n * (spec.c // self._lanes) * (spec.out_h // rows)
        products = rows * spec.out_w * (spec.r * spec.s + COPYING)
        return rounds_of_any(tasks, self._threads) * (products + COPYING * self._read(rows))

    def apply(self, sch: Schedule, _choose: Choose) -> None:
        conv, out, pack = map(sch.get_sblock, ("conv", "out", "pack"))
        n, block, y, x, lane = sch.get_loops(out)
        y, _ = sch.split(y, [None, self.rows])
        x, pixel = sch.split(x, [None, divisors(self.spec.out_w, MOST_PIXELS)[-1]])
        outer = sch.fuse(n, block, y)
        sch.parallel(outer)
        in_registers(sch, pixel, lane)
        sch.compute_at(conv, x, preserve_unit_loops=True)
        pixel, lane, r, s = sch.get_loops(conv)[-4:]
        sch.reorder(r, s, pixel, lane)
        in_registers(sch, r, s, pixel, lane)
        sch.compute_at(pack, outer, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(pack)[-1])
        init = sch.decompose_reduction(conv, r)
        sch.unroll(sch.get_loops(init)[-2])
        skip_padding(sch, conv, self.spec, LEAST_PADDING)
