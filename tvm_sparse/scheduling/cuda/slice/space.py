"""The space of the kernels of shared positions (codegen/cuda/slice.cu): how a convolution may be cut."""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from tvm import tirx

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.library_call import Copies, library_call
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.cuda.slice.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.slice.packing import packed
from tvm_sparse.scheduling.cuda.slice.tiling import FILTERS, MAX_STAGES, MAX_WARPS, N_TILES, OF_TILE, WARP, SliceTiling
from tvm_sparse.scheduling.cuda.slice.time import Positions, estimated_us
from tvm_sparse.scheduling.family import HALF_VARIANTS, TF32_VARIANT
from tvm_sparse.target.gpu import GpuInfo

FILTER_WARPS, PIXEL_WARPS, K_WARPS = (1, 2, 4, 8), (1, 2, 4, 7, 8), (1, 2, 4, 8)
CHANNELS = (4, 8, 16, 32, 64, 128, 256)


class SliceSpace(LibrarySpace[SliceTiling]):
    """The space of all tilings of a convolution."""

    def __init__(self, name: str, spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo, tf32: bool = False):
        super().__init__(name, TF32_VARIANT if tf32 else HALF_VARIANTS.get(spec.dtype, ""), spec, gpu)
        self.tf32 = tf32
        self.positions = Positions.of(spec, pattern)

    @cached_property
    def candidates(self) -> dict[str, list[int]]:
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

    def tilings(self) -> Iterator[SliceTiling]:
        known, cuts = self._cuts
        return (SliceTiling.of(known[place], channels=channels, stages=stages) for place, channels, stages in cuts)

    @cached_property
    def ranked(self) -> list[tuple[float, SliceTiling]]:
        known, cuts = self._cuts
        if not cuts:
            return []
        places, channels, stages = np.array(cuts).T
        every = SliceTiling.together(known, places, channels=channels, stages=stages)

        def make(index: int) -> SliceTiling:
            place, channels, stages = cuts[index]
            return SliceTiling.of(known[place], channels=channels, stages=stages)

        return self.ranked_together(every, make, (every.blocks,), self.positions.shared_bytes(every))

    @property
    def _cuts(self) -> tuple[list[dict[str, Any]], list[tuple[int, int, int]]]:
        """What is known of tiles, and tilings that are worth a look: a tile's place, channels and stages."""
        *cuts, channels, stages = self.candidates.values()
        known: list[dict[str, Any]] = []
        found = []
        for m_tiles, n_tiles, *warps in product(*cuts):
            filter_warps, pixel_warps, k_warps = warps
            if not 2 <= math.prod(warps) <= MAX_WARPS:
                continue
            first = SliceTiling(
                self.spec, m_tiles, n_tiles, filter_warps, pixel_warps, k_warps, channels[0], 1, self.tf32
            )
            if first.obstacle:
                continue
            live = self.positions.live_channels(first.filters)
            known.append(first.known(OF_TILE))
            for some in channels:
                chunks = math.ceil(live / some)
                # More room than is needed, or one buffer for several chunks, is worse in every way.
                if some > CHANNELS[0] and chunks == 1 and math.ceil(live / (some // 2)) == 1:
                    break
                found += [(len(known) - 1, some, each) for each in stages if (each == 1) == (chunks == 1)]
        return known, found

    def obstacle(self, tiling: SliceTiling) -> str:
        obstacle = tiling.obstacle or self.exceeds_grid(tiling.blocks)
        return obstacle or self.lacks_shared_memory(int(self.positions.shared_bytes(tiling)))

    def estimated_us(self, tiling: SliceTiling) -> Any:
        return estimated_us(tiling, self.positions, self.gpu)

    def tiling(self, decisions: Mapping[str, Any]) -> SliceTiling:
        return SliceTiling(self.spec, **decisions, tf32=self.tf32)

    def counts(self, tiling: SliceTiling) -> list[float]:
        return [tiling.tiles_8, tiling.rows, tiling.images, tiling.blocks, self.positions.shared_bytes(tiling)]

    def packed_for(self, weight: np.ndarray, tiling: SliceTiling) -> tuple[np.ndarray, int]:
        found = packed(weight, tiling)
        return found, tiling.shared_bytes(len(found) // tiling.k_tiles, found.shape[1])

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        tiling = self.checked(decisions)
        rows = tirx.Var("rows", "int32")
        chunks = tirx.floordiv(rows, tiling.k_tiles)

        def numbers(stride: tirx.Var) -> list[Any]:
            buffers = tirx.min(chunks, tiling.stages) * tiling.buffer_bytes(stride)
            shared_bytes = tirx.max(buffers, tiling.sums_bytes)
            launch = (tiling.blocks, 1, 1, WARP * tiling.warps, 1, shared_bytes)
            return [*arguments(PARAMETERS, tiling, chunks=chunks, stride=stride), *launch]

        library, copies = LIBRARIES[tiling.multiplied], Copies.of(self.gpu)
        return library_call(self.spec, library, tiling.kernel, rows, numbers, copies)
