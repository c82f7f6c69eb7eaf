"""The space of convolutions on sparse tensor cores (codegen/cuda/quad.cu): how one may be cut."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from tvm import tirx

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.cuda.library.library_call import library_call
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.cuda.quad.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.quad.packing import WINDOW, packed
from tvm_sparse.scheduling.cuda.quad.tiling import K_BLOCK, MAX_POSITIONS, PARTS, PIXELS, THREADS, QuadTiling
from tvm_sparse.scheduling.cuda.slice.time import Positions
from tvm_sparse.scheduling.family import HALF_VARIANTS, TF32_VARIANT
from tvm_sparse.target.gpu import GpuInfo


@dataclass(frozen=True)
class _Cycles:
    """As kernels took on an H200: of a k-block by tiles of filters of a warpgroup, and of each pixel in it; of a block
    before its first k-block and behind its last, and of blocks that share a tile, and for each of its sums; how many
    times as long as DRAM's bandwidth allows outputs and residuals take, beside nothing else; microseconds to start.
    """

    k_block: Mapping[int, float]
    pixel: Mapping[int, float]
    block: float
    join: float
    join_sum: float
    written: float
    residual: float
    start_us: float


# Of 1,013 kernels at batch 8 to 64, the root of the mean square of the errors 13%; what blocks share: of 11 layers of
# wide ResNet-50, one image. In half precision of 20; where float32 is rounded to TF32, of 31, 5%.
_FLOAT32 = _Cycles({1: 0, 2: 653}, {1: 10.5, 2: 6.55}, 374, 5000, 0.35, 3.55, 4.1, 3.0)
_HALF = _Cycles({1: 45, 2: 258}, {1: 5.8, 2: 5.6}, 7000, 5000, 0.0, 4.3, 4.3, 1.7)
_TF32 = _Cycles({1: 0, 2: 0}, {1: 5.4, 2: 7.3}, 8400, 5000, 0.35, 3.5, 3.75, 3.0)
_CYCLES = {FLOAT32: _FLOAT32, TF32_VARIANT: _TF32}
# Up to where all positions find three others, and how much further all find one only (fitted to random weights).
FITTING, LACKING = 0.95, 21.0


class QuadSpace(LibrarySpace[QuadTiling]):
    """The space of all tilings of a convolution."""

    def __init__(self, name: str, spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo, tf32: bool = False):
        super().__init__(name, TF32_VARIANT if tf32 else HALF_VARIANTS.get(spec.dtype, ""), spec, gpu)
        self.tf32 = tf32
        self.positions = Positions.of(spec, pattern)

    @cached_property
    def candidates(self) -> dict[str, list[int]]:
        """Decisions and their values."""
        kernels = PIXELS[TF32_VARIANT if self.tf32 else self.spec.dtype]
        tilings = [QuadTiling(self.spec, each, some[0], tf32=self.tf32) for each, some in kernels.items()]
        # None that fills up more filters than the smallest one has.
        m_tiles = [each.m_tiles for each in tilings if each.filled <= tilings[0].filters]
        return {
            "m_tiles": m_tiles,
            "pixels": sorted({each for some in kernels.values() for each in some}),
            "parts": list(PARTS),
        }

    def tilings(self) -> Iterator[QuadTiling]:
        for m_tiles, pixels, parts in product(*self.candidates.values()):
            yield QuadTiling(self.spec, m_tiles, pixels, parts, self.tf32)

    def obstacle(self, tiling: QuadTiling) -> str:
        if obstacle := tiling.obstacle or self.exceeds_grid(tiling.blocks):
            return obstacle
        if (positions := self._part_k_blocks(tiling) * K_BLOCK) > MAX_POSITIONS:
            return f"about {positions} positions, at most {MAX_POSITIONS}"
        return self.lacks_shared_memory(tiling.shared_bytes)

    def _part_k_blocks(self, tiling: QuadTiling) -> int:
        """K-blocks of a block, at most."""
        return math.ceil(self.k_blocks(tiling) / tiling.parts)

    def k_blocks(self, tiling: QuadTiling) -> float:
        """K-blocks of a tile, as far as the pattern tells."""
        some = self.positions
        share = some.of_filters(tiling.filters)
        if not share:
            return 1.0
        # Filters that differ, and how dense each is among positions that any of them uses.
        filters, density = max(1.0, tiling.filters / some.alike), min(1.0, some.density / share)
        count = some.channels * some.taps * share
        # How unlikely it is that no filter uses three of four, in the choices of a window that there are for the last.
        uses_two = 1 - density**3 * (4 - 3 * density)
        unlikely = math.inf if uses_two <= 0 else -filters * math.log(uses_two) - math.log(min(WINDOW, count))
        return max(1.0, count * (1 + min(max((unlikely - FITTING) / LACKING, 0.0), 1.0)) / K_BLOCK)

    def estimated_us(self, tiling: QuadTiling) -> float:
        """Estimated time: a block's k-blocks one after the other, then its outputs; so in each wave of blocks.

        In a model weights come from memory: the largest layers' are more than all caches hold.
        """
        spec, gpu, pixels, parts = self.spec, self.gpu, tiling.pixels, tiling.parts
        cycles = _CYCLES.get(tiling.multiplied, _HALF)
        k_block = cycles.k_block[tiling.m_tiles] + cycles.pixel[tiling.m_tiles] * pixels
        moved_bytes = tiling.element_bytes * tiling.filters * pixels / parts
        times = cycles.written + (cycles.residual if spec.residual else 0.0)
        moved = times * moved_bytes / (gpu.dram_bytes_s / gpu.multiprocessors / gpu.clock_hz)
        joined = cycles.join + cycles.join_sum * tiling.filters * pixels if parts > 1 else 0.0
        block = self._part_k_blocks(tiling) * k_block + moved + cycles.block + joined
        read_us = 16 * tiling.units * self.k_blocks(tiling) * tiling.k_tiles / gpu.dram_bytes_s * 1e6
        return cycles.start_us + read_us + self.waves(tiling.blocks, parts) * block / gpu.clock_hz * 1e6

    def tiling(self, decisions: Mapping[str, Any]) -> QuadTiling:
        return QuadTiling(self.spec, **decisions, tf32=self.tf32)

    def counts(self, tiling: QuadTiling) -> list[float]:
        return [tiling.blocks, self.k_blocks(tiling)]

    def packed_for(self, weight: np.ndarray, tiling: QuadTiling) -> tuple[np.ndarray, int]:
        found = packed(weight, tiling)
        if (positions := -(-(len(found) // tiling.k_tiles - 1) // tiling.parts) * K_BLOCK) > MAX_POSITIONS:
            sentence = "filters of a block have too many positions"
            raise BuildError(f"schedule {self.name}", sentence, positions, f"up to {MAX_POSITIONS}")
        return found, tiling.shared_bytes

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        tiling = self.checked(decisions)
        rows = tirx.Var("rows", "int32")
        tile_rows = tirx.floordiv(rows, tiling.k_tiles)
        launch = (tiling.blocks, 1, 1, THREADS, tiling.parts, tiling.shared_bytes)

        def numbers(stride: tirx.Var) -> list[Any]:
            return [*arguments(PARAMETERS, tiling, tile_rows=tile_rows, stride=stride), *launch]

        return library_call(self.spec, LIBRARIES[tiling.multiplied], tiling.kernel, rows, numbers)
