"""The space of convolutions of shared planes (codegen/cuda/plane.cu): how one may be cut."""

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
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.library.library_call import library_call
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.cuda.plane.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.plane.packing import packed
from tvm_sparse.scheduling.cuda.plane.tiling import (
    CHANNEL,
    FILTERS,
    GROUP,
    GROUP_UNITS,
    GROUPS_AT,
    PIXELS,
    ROW,
    STEP_UNITS,
    TAP,
    THREADS,
    PlaneTiling,
)
from tvm_sparse.scheduling.cuda.slice.time import Positions
from tvm_sparse.scheduling.family import HALF_VARIANTS
from tvm_sparse.target.gpu import GpuInfo

# Groups of eight planes that a slot may have room for.
GROUPS = (1, 2, 4, 8, 16)
# To start, and bytes of weights a cycle.
START_US, WEIGHT_BYTES = 0.8, 200.0
# The same of blocks with one tile, and what share of its time is left where none comes before or behind it: 270 kernels
# with few images were 1.2 times as fast as estimated otherwise (an H200).
ALONE_START_US, ALONE_SHARE = 1.38, 0.71


@dataclass(frozen=True)
class _Cycles:
    """As kernels took on an H200: to write a tile's inputs, and 32 copies of eight planes of them; of a k-step, a
    pixel; of a tile's outputs, and a pixel of them, and as much again of residuals.
    """

    tile: float
    copy: float
    step: float
    out: float
    out_pixel: float


_HALF, _FLOAT32 = _Cycles(1600, 95, 0.5, 480, 23), _Cycles(2200, 130, 2.0, 480, 30)


@dataclass(frozen=True)
class _Planes:
    """What 64 filters use, as far as a pattern tells: groups of eight planes, and halves of k-steps."""

    groups: int
    halves: int


class PlaneSpace(LibrarySpace[PlaneTiling]):
    """The space of all tilings of a convolution."""

    def __init__(self, name: str, spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo):
        super().__init__(name, HALF_VARIANTS.get(spec.dtype, ""), spec, gpu)
        self.positions = Positions.of(spec, pattern)

    @cached_property
    def candidates(self) -> dict[str, list[int]]:
        """Decisions and their values."""
        spec = self.spec
        planes = [CHANNEL] + [ROW] * (spec.r > 1) + [TAP] * (spec.r * spec.s > 1)
        return {"pixels": list(PIXELS[spec.dtype]), "plane": planes, "groups": list(GROUPS)}

    def tilings(self) -> Iterator[PlaneTiling]:
        for pixels, plane, groups in product(*self.candidates.values()):
            tiling = PlaneTiling(self.spec, pixels, plane, groups)
            # Room for more than there is is of no use.
            if groups == GROUPS[0] or groups < 2 * self.planes(tiling, self.most).groups:
                yield tiling

    def obstacle(self, tiling: PlaneTiling) -> str:
        obstacle = tiling.obstacle or self.exceeds_grid(tiling.k_tiles * tiling.workers(self.gpu.multiprocessors))
        return obstacle or self.lacks_shared_memory(16 * self.units(tiling) + tiling.ring_bytes(2))

    def planes(self, tiling: PlaneTiling, factor: float = 1.0) -> _Planes:
        """What filters of a block use, or so many times as much."""
        spec, some = self.spec, self.positions
        if tiling.plane == TAP:
            groups = math.ceil(max(1.0, factor * some.of_filters(FILTERS) * some.channels * some.taps) / GROUP)
            return _Planes(groups, groups)
        channels, used = factor * some.live_channels(FILTERS), factor * self._rows
        bases = {(row.base, column.base) for row in tiling.row_shifts for column in tiling.column_shifts}
        if tiling.plane == CHANNEL:
            each = math.ceil(channels / GROUP)
            # Channels of which filters use the same rows are in one group; some groups have two kinds of these.
            mixed = 0.5 * min(each, 2**spec.r - 2) if some.channel_slices > 1 else 0.0
            rows = min(max(each, used / GROUP + mixed), each * spec.r)
            return _Planes(each * len(bases), math.ceil(rows * spec.s))
        each = math.ceil(used / spec.r / GROUP)
        return _Planes(each * len(bases), math.ceil(used / GROUP) * spec.s)

    @cached_property
    def most(self) -> float:
        """How many times as many planes as others those 64 filters use that use most, where zeros are at random."""
        share, tiles = self._live_share, self.spec.k // FILTERS
        # The largest of 2 to 16 normal numbers.
        return 1 + 0.7 * math.sqrt(2 * math.log(tiles) * (1 - share) / (share * self.positions.channels))

    @cached_property
    def _live_share(self) -> float:
        """Of a group's input channels those that filters of a block use."""
        return min(1.0, self.positions.live_channels(FILTERS) / self.positions.channels)

    @cached_property
    def _read_channels(self) -> float:
        """Input channels that any filter uses."""
        tiles = self.spec.k // self.spec.groups // FILTERS
        return self.spec.c * (1 - (1 - self._live_share) ** tiles)

    @cached_property
    def _rows(self) -> float:
        """Rows of taps that filters of a block use, of all channels."""
        spec, some = self.spec, self.positions
        if some.channel_slices == 1:
            return some.live_channels(FILTERS) * spec.r
        share = 1 - (1 - some.slices) ** max(1.0, FILTERS / some.tile)
        if some.channel_slices > spec.r:
            share = 1 - (1 - some.of_filters(FILTERS)) ** spec.s
        return max(1.0, some.channels * spec.r * share)

    def units(self, tiling: PlaneTiling) -> int:
        """About how many 16-byte units a tile's weights take; those that use most set the size of all."""
        planes = self.planes(tiling)
        steps = math.ceil(self.most * planes.halves / 2) + math.ceil(planes.groups / tiling.groups) - 1
        return GROUPS_AT + GROUP_UNITS * planes.groups + (STEP_UNITS * tiling.parts + 1) * steps + 2

    def estimated_us(self, tiling: PlaneTiling) -> float:
        """Estimated time: of a block's tiles, whose inputs are written beside products and outputs."""
        spec, gpu, planes = self.spec, self.gpu, self.planes(tiling)
        each, size = _FLOAT32 if spec.dtype == FLOAT32 else _HALF, STORAGE[spec.dtype].size_bytes
        tiles = math.ceil(tiling.tiles / tiling.workers(gpu.multiprocessors))
        copies = math.ceil(tiling.staged / tiling.read_together / WARP) * planes.groups
        chunks = math.ceil(self.planes(tiling, self.most).groups / tiling.groups)
        written = each.tile * chunks + each.copy * copies
        products = each.step * tiling.pixels * planes.halves / 2
        outputs = (each.out + each.out_pixel * tiling.pixels) * (2 if spec.residual else 1) * (2 / tiling.vector)
        # Two tiles at a time; one alone has all to itself.
        both = (products + outputs) / min(2, tiles)
        moved = float(size) * FILTERS * tiling.pixels * (2 if spec.residual else 1)
        moved += size * self._read_channels * spec.n * spec.h * spec.w / (tiling.tiles * tiling.k_tiles)
        memory = moved / (0.85 * gpu.dram_bytes_s / gpu.multiprocessors / gpu.clock_hz)
        cycles = tiles * max(math.hypot(written, both), memory) + 16 * self.units(tiling) / WEIGHT_BYTES
        waves = math.ceil(tiling.k_tiles / gpu.multiprocessors)
        tiles_us = waves * cycles / gpu.clock_hz * 1e6
        return START_US + tiles_us if tiles > 1 else ALONE_START_US + ALONE_SHARE * tiles_us

    def tiling(self, decisions: Mapping[str, Any]) -> PlaneTiling:
        return PlaneTiling(self.spec, **decisions)

    def counts(self, tiling: PlaneTiling) -> list[float]:
        planes = self.planes(tiling)
        return [tiling.tiles, tiling.k_tiles, planes.groups, planes.halves, tiling.staged]

    def packed_for(self, weight: np.ndarray, tiling: PlaneTiling) -> tuple[np.ndarray, int]:
        found = packed(weight, tiling)
        return found, 16 * found.shape[1] + tiling.ring_bytes(1)

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        tiling, gpu = self.checked(decisions), self.gpu
        workers = tiling.workers(gpu.multiprocessors)
        given = {"workers": workers, "shared_units": gpu.block_shared_bytes // 16}
        launch = (tiling.k_tiles * workers, 1, 1, THREADS, 1, gpu.block_shared_bytes)

        def numbers(stride: tirx.Var) -> list[Any]:
            return [*arguments(PARAMETERS, tiling, stride=stride, **given), *launch]

        return library_call(self.spec, LIBRARIES[self.spec.dtype], tiling.kernel, tiling.k_tiles, numbers)
