"""The space of kernels for convolutions of images (codegen/cuda/first.cu): how large a tile is."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from tvm import tirx

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.scheduling.cuda.first.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.first.packing import packed
from tvm_sparse.scheduling.cuda.first.tiling import GROUP, KERNELS, PIXELS, WARPS, FirstTiling, Pool
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.library.library_call import library_call, spec_of
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.family import HALF_VARIANTS
from tvm_sparse.target.gpu import GpuInfo

# Attribute of a function: the convolution that it computes, as text.
_SPEC = "tvm_sparse.first_layer"
# Rows and columns of a tile at most.
MOST_ROWS, MOST_COLUMNS = 16, 64
# Cycles of a multiprocessor for an input that is read to be multiplied, a staged pixel, and a sum that is rounded, kept
# and read; microseconds to start: of 82 kernels on an H200 (docs/lab/cuda-half.md).
READ_CYCLES, STAGED_CYCLES, SUM_CYCLES, START_US = 0.9, 2.7, 0.2, 4.2


class FirstSpace(LibrarySpace[FirstTiling]):
    """The space of all tiles of a convolution, and of the pool `behind` it, whose outputs lie in NHWC if `nhwc`."""

    def __init__(self, name: str, spec: ConvSpec, gpu: GpuInfo, behind: Pool | None = None, nhwc: bool = False):
        super().__init__(name, HALF_VARIANTS[spec.dtype], spec, gpu)
        self.any = FirstTiling(spec, 1, 1, behind, nhwc)

    @cached_property
    def candidates(self) -> dict[str, list[int]]:
        """Decisions and their values: for each number of tiles the smallest size."""
        found = (
            sorted({-(-size // tiles) for tiles in range(-(-size // most), size + 1)})
            for size, most in zip(self.any.out_size, (MOST_ROWS, MOST_COLUMNS), strict=True)
        )
        return dict(zip(("rows", "columns"), found, strict=True))

    def tilings(self) -> Iterator[FirstTiling]:
        for rows, columns in product(*self.candidates.values()):
            yield replace(self.any, rows=rows, columns=columns)

    @property
    def _shared_bytes(self) -> int:
        """That a block asks for, always the same: TVM tells CUDA once."""
        return self.gpu.shared_bytes // KERNELS[self.any.steps][1] - self.gpu.reserved_bytes

    def obstacle(self, tiling: FirstTiling) -> str:
        if tiling.obstacle:
            return tiling.obstacle
        limit = self._shared_bytes
        return "" if tiling.shared_bytes <= limit else f"a tile takes {tiling.shared_bytes} bytes, at most {limit}"

    def _blocks(self, tiling: FirstTiling) -> int:
        """That have tiles, one after the other."""
        fits = KERNELS[tiling.steps][1] * self.gpu.multiprocessors
        return min(math.prod(tiling.tiles), max(1, fits // tiling.filter_tiles))

    def estimated_us(self, tiling: FirstTiling) -> float:
        """Estimated time: tiles in turn, unless memory takes longer."""
        spec, gpu = self.spec, self.gpu
        sums = tiling.turns * PIXELS * tiling.groups * GROUP
        reads = tiling.turns * tiling.groups * tiling.steps / KERNELS[tiling.steps][0]
        cycles = READ_CYCLES * reads + SUM_CYCLES * sums
        cycles += STAGED_CYCLES * math.prod(tiling.in_size)
        turns = math.ceil(math.prod(tiling.tiles) / self._blocks(tiling))
        at_once = math.ceil(self._blocks(tiling) * tiling.filter_tiles / gpu.multiprocessors)
        busy_us = turns * at_once * cycles / gpu.clock_hz * 1e6
        elements = math.prod(spec.input_shape) + math.prod(tiling.out_size) * spec.n * spec.k
        return START_US + max(busy_us, STORAGE[spec.dtype].size_bytes * elements / gpu.dram_bytes_s * 1e6)

    def tiling(self, decisions: Mapping[str, Any]) -> FirstTiling:
        return replace(self.any, **decisions)

    def counts(self, tiling: FirstTiling) -> list[float]:
        return [math.prod(tiling.tiles), tiling.turns, math.prod(tiling.in_size)]

    def packed_for(self, weight: np.ndarray, tiling: FirstTiling) -> tuple[np.ndarray, int]:
        return packed(weight, tiling), tiling.shared_bytes

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        return self._written(self.checked(decisions))

    def _written(self, tiling: FirstTiling) -> tirx.PrimFunc:
        blocks = self._blocks(tiling)
        launch = (blocks, tiling.filter_tiles, 1, WARP * WARPS, 1, self._shared_bytes)
        numbers = [*arguments(PARAMETERS, tiling, blocks=blocks), *launch]
        units, library = tirx.Var("units", "int32"), LIBRARIES[self.spec.dtype]
        return library_call(self.spec, library, tiling.kernel, units, lambda _: numbers, y=tiling.y_shape, mark=_SPEC)

    @property
    def fastest(self) -> tirx.PrimFunc | None:
        """The function of the tiling that should be the fastest; None where no tile fits."""
        return self._written(self.ranked[0][1]) if self.ranked else None


def first_layer_of(func: tirx.PrimFunc) -> ConvSpec | None:
    """The convolution of a function that such a space has written, None of another."""
    return spec_of(func, _SPEC)
