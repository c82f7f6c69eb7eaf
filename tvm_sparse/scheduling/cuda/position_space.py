"""The space of the kernels of shared positions (codegen/cuda/sparse_tensor.cu): how a convolution may be cut."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d import conv2d
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.cuda.library_call import library_call
from tvm_sparse.scheduling.cuda.position_geometry import geometry
from tvm_sparse.scheduling.cuda.position_packing import checked_shared_bytes, packed
from tvm_sparse.scheduling.cuda.position_tiling import (
    FILTERS,
    LIBRARIES,
    MAX_STAGES,
    MAX_WARPS,
    N_TILES,
    WARP,
    PositionTiling,
)
from tvm_sparse.scheduling.cuda.position_time import Positions, estimated_us
from tvm_sparse.scheduling.schedule_names import HALF_VARIANTS
from tvm_sparse.scheduling.space import Choose, Decisions, OneOf, WrittenSpace, sampled
from tvm_sparse.target.gpu import GpuInfo

FILTER_WARPS, PIXEL_WARPS, K_WARPS = (1, 2, 4, 8), (1, 2, 4, 7, 8), (1, 2, 4, 8)
CHANNELS = (4, 8, 16, 32, 64, 128, 256)
# Decisions that a search begins with.
STARTS = 24
# Blocks of a grid at most.
MAX_GRID = 2**31 - 1


class PositionSpace(WrittenSpace):
    """The space of all tilings of a convolution."""

    has_features = True

    def __init__(self, name: str, spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo):
        super().__init__(name, HALF_VARIANTS.get(spec.dtype, ""), conv2d(spec), fold=False)
        self.spec, self.gpu = spec, gpu
        self.positions = Positions.of(spec, pattern)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        default = self.ranked[0][1] if choose.given is None else None
        for name, values in self._candidates.items():
            self.decide(sch, choose, name, values, getattr(default, name) if default is not None else values[0])

    @cached_property
    def _candidates(self) -> dict[str, list[int]]:
        """Decisions and their values."""
        per_group, channels = self.spec.k // self.spec.groups, self.spec.c // self.spec.groups
        return {
            "m_tiles": [each for each in N_TILES if per_group % (FILTERS * each) == 0],
            "n_tiles": sorted({each for some in N_TILES.values() for each in some}),
            "filter_warps": [each for each in FILTER_WARPS if per_group % (FILTERS * each) == 0],
            "pixel_warps": list(PIXEL_WARPS),
            "k_warps": list(K_WARPS),
            "channels": [each for each in CHANNELS if each < 2 * channels] or [CHANNELS[0]],
            "stages": list(range(1, MAX_STAGES + 1)),
        }

    @cached_property
    def choices(self) -> dict[str, Any]:
        return {name: OneOf(tuple(sorted(values))) for name, values in self._candidates.items()}

    @cached_property
    def ranked(self) -> list[tuple[float, PositionTiling]]:
        """Tilings that can be made, by their estimated time in microseconds."""
        found = [(self.estimated_us(each), each) for each in self._tilings() if not self._obstacle(each)]
        return sorted(found, key=lambda each: each[0])

    def _tilings(self) -> Iterator[PositionTiling]:
        *cuts, channels, stages = self._candidates.values()
        for m_tiles, n_tiles, *warps in product(*cuts):
            filter_warps, pixel_warps, k_warps = warps
            if not 2 <= math.prod(warps) <= MAX_WARPS:
                continue
            first = PositionTiling(self.spec, m_tiles, n_tiles, filter_warps, pixel_warps, k_warps, channels[0], 1)
            if first.obstacle:
                continue
            live = self.positions.live_channels(first.filters)
            for some in channels:
                chunks = math.ceil(live / some)
                # More room than is needed, or one buffer for several chunks, is worse in every way.
                if some > CHANNELS[0] and chunks == 1 and math.ceil(live / (some // 2)) == 1:
                    break
                for each in stages:
                    if (each == 1) == (chunks == 1):
                        yield replace(first, channels=some, stages=each)

    def _obstacle(self, tiling: PositionTiling) -> str:
        if tiling.obstacle:
            return tiling.obstacle
        if tiling.blocks > MAX_GRID:
            return f"{tiling.blocks} thread blocks, at most {MAX_GRID}"
        needed, limit = self.positions.shared_bytes(tiling), self.gpu.block_shared_bytes
        return f"about {needed} bytes of shared memory are needed and there are {limit}" if needed > limit else ""

    def estimated_us(self, tiling: PositionTiling) -> float:
        """Estimated time in microseconds."""
        return estimated_us(tiling, self.positions, self.gpu)

    def _tiling(self, sch: Schedule) -> PositionTiling:
        return self.tiling(dict(zip(self._candidates, sampled(sch), strict=True)))

    def tiling(self, decisions: Mapping[str, Any]) -> PositionTiling:
        """The tiling of decisions by name."""
        return PositionTiling(self.spec, **decisions)

    def starts(self) -> list[Decisions]:
        return [{name: getattr(tiling, name) for name in self.choices} for _, tiling in self.ranked[:STARTS]]

    def refusal(self, sch: Schedule) -> str:
        return self._obstacle(self._tiling(sch))

    def features(self, sch: Schedule) -> list[float]:
        tiling = self._tiling(sch)
        values = [getattr(tiling, name) for name in self._candidates]
        counts = [tiling.tiles_8, tiling.rows, tiling.images, tiling.blocks, self.positions.shared_bytes(tiling)]
        return [*map(float, values), *np.log2(counts).tolist(), np.log2(self.estimated_us(tiling))]

    def estimate(self, sch: Schedule) -> float | None:
        return self.estimated_us(self._tiling(sch))

    @property
    def starts_us(self) -> list[float | None]:
        return [time_us for time_us, _ in self.ranked[:STARTS]]

    @property
    def estimate_us(self) -> float | None:
        return self.ranked[0][0]

    def packed(self, weight: np.ndarray, decisions: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        tiling = self._checked(decisions)
        found = packed(weight, tiling)
        checked_shared_bytes(self.name, found, tiling, self.gpu.block_shared_bytes)
        return (found,)

    def _checked(self, decisions: Mapping[str, Any]) -> PositionTiling:
        tiling = self.tiling(decisions)
        if tiling.obstacle:
            raise BuildError(f"schedule {self.name}", f"the decisions do not fit together: {tiling.obstacle}")
        return tiling

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        tiling = self._checked(decisions)
        rows = tirx.Var("rows", "int32")
        chunks = tirx.floordiv(rows, tiling.k_tiles)

        def numbers(stride: tirx.Var) -> list[Any]:
            buffers = tirx.min(chunks, tiling.stages) * (16 * stride + tiling.element_bytes * tiling.input_elements)
            shared_bytes = tirx.max(buffers, tiling.sums_bytes)
            grid = (tiling.blocks, 1, 1)
            return [chunks, stride, *geometry(tiling), *grid, WARP * tiling.warps, 1, shared_bytes]

        library = LIBRARIES[self.spec.dtype]
        return library_call(self.spec, library, tiling.kernel, rows, numbers)
