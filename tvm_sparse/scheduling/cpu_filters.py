"""Dense convolutions on CPUs with vectors of filters: a register tile of output pixels by vectors of filters.

Outermost first::

    parallel over images, blocks of filters, blocks of output rows
      for each row, each tile of `pixels` of it
        registers = 0
        for each input channel and tap
          load the tile's vectors of weights, broadcast its pixels, multiply-add
      copy the rows to the output with bias, residual and ReLU

Weights are read in the order in which they lie in memory, once a tile. No lane is idle where filters fill the vectors.
"""

import numpy as np
from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d_filters import conv2d_filters, filter_blocks, is_packed
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, divisors, nearest
from tvm_sparse.target.cpu_info import CpuInfo

# Pixels of a register tile and rows of a block by default; and the fewest pixels for which a row is not made longer.
PIXELS, ROWS, FEW_PIXELS = 8, 7, 4
# Sums that hide a multiply-add's latency: two begin in a cycle, and one takes four.
HIDING_SUMS = 8
# Taps of a row, but for one, that LLVM unrolls.
MOST_SHARED = 2


class FilterSpace(HandMadeSpace):
    """The space of blocks of `vectors` vectors of filters, for convolutions of one group."""

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, vectors: int):
        self.spec, self.filters, self._lanes = spec, cpu.lanes * vectors, cpu.lanes
        self._most_pixels = _most_pixels(spec, cpu, vectors)
        self._columns = _columns(spec.out_w, self._most_pixels)
        func = conv2d_filters(spec, self.filters, self._columns)
        super().__init__(name, f"filters{self.filters}", func, fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight as (K / filters, C, R, S, filters), zeros behind its end."""
        return (filter_blocks(weight, self.filters),)

    @property
    def cost(self) -> float:
        """Estimated time, as a multiple of that of the multiply-adds alone.

        Idle lanes take as long as others, and where there are few sums a multiply-add waits for the one before. An
        output is stored by itself, as neighbours in a vector lie far apart in memory, and that takes as long as a
        multiply-add of a vector.
        """
        spec = self.spec
        blocks = -(-spec.k // self.filters)
        waste = blocks * self.filters / spec.k * self._columns / spec.out_w
        sums = self.filters // self._lanes * nearest(divisors(self._columns, self._most_pixels), PIXELS)
        return waste * max(1.0, HIDING_SUMS / sums) + self._lanes / (spec.c * spec.r * spec.s)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        spec = self.spec
        tiles, rows = divisors(self._columns, self._most_pixels), divisors(spec.out_h, 16)
        channels = divisors(spec.c, 4)
        pixels = choose.one_of("pixels", tiles, nearest(tiles, PIXELS))
        rows_block = choose.one_of("rows", rows, nearest(rows, ROWS))
        # Of convolutions by one tap several channels between two jumps.
        channels_block = choose.one_of("channels", channels, channels[-1] if spec.r * spec.s == 1 else 1)

        conv, out = sch.get_sblock("conv"), sch.get_sblock("out")
        acc = sch.cache_write(conv, 0, "local")
        n, k, y, x = sch.get_loops(out)
        block, k = sch.split(k, [None, self.filters])
        y, row = sch.split(y, [None, rows_block])
        sch.reorder(n, block, y, row, k, x)
        outer = sch.fuse(n, block, y)
        sch.parallel(outer)
        sch.compute_at(acc, outer, preserve_unit_loops=True)
        *_, x, lane = sch.get_loops(acc)
        x, tile = sch.split(x, [None, pixels])
        sch.vectorize(lane)
        sch.unroll(tile)
        sch.compute_at(conv, x, preserve_unit_loops=True)
        tile, lane, c, r, s = sch.get_loops(conv)[-5:]
        c, channel = sch.split(c, [None, channels_block])
        sch.reorder(c, r, s, channel, tile, lane)
        sch.vectorize(lane)
        for loop in (channel, tile):
            sch.unroll(loop)
        sch.unroll(sch.get_loops(sch.decompose_reduction(conv, c))[-2])
        if is_packed(spec, self._columns):
            sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock("pack"))[:2]))


def _most_pixels(spec: ConvSpec, cpu: CpuInfo, vectors: int) -> int:
    """Pixels of a tile whose sums fit the registers, beside a tap's weights and, where need be, a broadcast pixel.

    LLVM unrolls the taps of a short row and keeps the pixels that they share in registers. Where these then are too
    few for the sums, a kernel takes up to 2.4 times as long.
    """
    if spec.s == 1:
        return max(1, (cpu.registers - vectors - (0 if cpu.has_memory_broadcast else 1)) // vectors)
    return max(1, (cpu.registers - vectors - min(spec.s - 1, MOST_SHARED)) // (vectors + 1))


def _columns(width: int, most: int) -> int:
    """The least number from `width` on that tiles of `FEW_PIXELS` to `most` pixels divide; `width` where it is less."""
    if width < FEW_PIXELS or most < FEW_PIXELS:
        return width
    return next(each for each in range(width, width + most) if any(each % p == 0 for p in range(FEW_PIXELS, most + 1)))
