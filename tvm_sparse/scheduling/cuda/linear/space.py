"""The space of linear layers on many images, weights as data (codegen/cuda/linear.cu)."""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from tvm import tirx

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.library.library_call import library_call
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.cuda.linear.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.linear.packing import packed
from tvm_sparse.scheduling.cuda.linear.tiling import LANE_IMAGES, POSITIONS, UNITS, WARPS, LinearTiling
from tvm_sparse.target.gpu import GpuInfo

# Rows of a warp in a chunk, and parts of the inputs.
ROWS, PARTS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16), (1, 2, 4, 8)


class ManyImagesSpace(LibrarySpace[LinearTiling]):
    """The space of all tilings in which a warp takes `shared` filters at a time."""

    def __init__(self, name: str, spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo, shared: int = 1):
        super().__init__(name, variant_of(shared), spec, gpu)
        self.pattern, self.shared = pattern, shared

    @cached_property
    def candidates(self) -> dict[str, list[int]]:
        """Decisions and their values."""
        filters = [WARPS * self.shared * each for each in ROWS]
        # No more than the layer has, filled up.
        most = next((each for each in filters if each >= self.spec.k), filters[-1])
        return {
            "filters": [each for each in filters if each <= most],
            "lane_images": list(LANE_IMAGES[self.shared]),
            "parts": list(PARTS),
        }

    def tilings(self) -> Iterator[LinearTiling]:
        for filters, lane_images, parts in product(*self.candidates.values()):
            yield LinearTiling(self.spec, filters, lane_images, parts, self.shared)

    def obstacle(self, tiling: LinearTiling) -> str:
        if obstacle := tiling.obstacle or self.exceeds_grid(*tiling.grid):
            return obstacle
        return self.lacks_shared_memory(tiling.shared_bytes)

    def _steps(self, tiling: LinearTiling) -> float:
        """Of a block, about; those that begin rows and those that are filled up in part included."""
        positions = self.pattern.nnz / self.spec.k * tiling.filters / self.shared / tiling.parts
        rows = tiling.chunks * tiling.filters / self.shared
        return positions / POSITIONS + (1 + (POSITIONS - 1) / (2 * POSITIONS)) * rows

    def estimated_us(self, tiling: LinearTiling) -> float:
        """Estimated time, as 60 kernels took on an H100: accesses to shared memory hide neither products nor chunks."""
        gpu, blocks, steps = self.gpu, math.prod(tiling.grid), self._steps(tiling)
        waves = self.waves(blocks, tiling.parts)
        accesses = steps * (UNITS[self.shared] + POSITIONS * tiling.lane_images)
        products = steps * POSITIONS * self.shared * tiling.lane_images / 4
        # Of each chunk: its inputs are written, sums read and written.
        chunk = tiling.chunk * tiling.images / WARP + 2 * tiling.filters * tiling.lane_images + 200
        compute_us = (1.12 * (accesses + products) + tiling.chunks * chunk) / gpu.clock_hz * 1e6
        block_bytes = tiling.part_inputs * tiling.images * STORAGE[self.spec.dtype].size_bytes
        read_us = blocks * block_bytes / gpu.level_2_bytes_s * 1e6
        weights_us = 16 * UNITS[self.shared] * steps * blocks / tiling.grid[2] / gpu.dram_bytes_s * 1e6
        join_us = 2.0 if tiling.parts > 1 else 0.5
        return 5.0 + max(waves * compute_us, read_us, weights_us) + join_us

    def tiling(self, decisions: Mapping[str, Any]) -> LinearTiling:
        return LinearTiling(self.spec, **decisions, shared=self.shared)

    def counts(self, tiling: LinearTiling) -> list[float]:
        return [math.prod(tiling.grid), tiling.chunks, self._steps(tiling)]

    def packed_for(self, weight: np.ndarray, tiling: LinearTiling) -> tuple[np.ndarray, int]:
        return packed(weight, tiling), tiling.shared_bytes

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        tiling = self.checked(decisions)
        launch = (*tiling.grid, WARP * WARPS, tiling.parts, self.gpu.block_shared_bytes)

        def numbers(stride: tirx.Var) -> list[Any]:
            return [*arguments(PARAMETERS, tiling, stride=stride), *launch]

        return library_call(self.spec, LIBRARIES[self.spec.dtype], tiling.kernel, tiling.streams, numbers)


def variant_of(shared: int) -> str:
    """The name of the space whose warps take so many filters at a time."""
    return "images" if shared == 1 else f"images-filters{shared}"
