"""The space of kernels for depthwise convolutions (codegen/cuda/depthwise.cu): how many pixels a thread has."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from tvm import tirx

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.depthwise.kernels import LIBRARIES, PARAMETERS
from tvm_sparse.scheduling.cuda.depthwise.tiling import COLUMNS, GROUP, THREADS, DepthwiseTiling, packed
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.library.library_call import library_call, spec_of
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.family import HALF_VARIANTS
from tvm_sparse.target.gpu import GpuInfo

# Attribute of a function: the convolution that it computes, as text.
_SPEC = "tvm_sparse.depthwise"
# Microseconds to start, the share of DRAM's bandwidth that is reached, and a multiprocessor's cycles for what makes
# float32 of 32 inputs or weights and for 32 products: of 25 kernels on an H200 (docs/lab/cuda-half.md).
START_US, SHARE, READ_CYCLES, PRODUCT_CYCLES = 1.5, 0.8, 0.8, 0.25


class DepthwiseSpace(LibrarySpace[DepthwiseTiling]):
    """The space of all tilings of a convolution, whose tensors lie in NHWC if `nhwc`, inputs clipped to `most`."""

    def __init__(self, name: str, spec: ConvSpec, gpu: GpuInfo, nhwc: bool = False, most: float = math.inf):
        super().__init__(name, HALF_VARIANTS[spec.dtype], spec, gpu)
        self.any = DepthwiseTiling(spec, 1, nhwc, most)

    @cached_property
    def candidates(self) -> dict[str, tuple[int, ...]]:
        return {"columns": COLUMNS[self.spec.r, self.spec.stride[0]]}

    def tilings(self) -> Iterator[DepthwiseTiling]:
        return (replace(self.any, columns=each) for each in self.candidates["columns"])

    def obstacle(self, tiling: DepthwiseTiling) -> str:
        return tiling.obstacle or self.exceeds_grid(tiling.blocks)

    def estimated_us(self, tiling: DepthwiseTiling) -> float:
        """Estimated time: a thread reads, then computes, and few others are there meanwhile."""
        spec, gpu = self.spec, self.gpu
        taps = spec.r * spec.s
        read = spec.r * ((tiling.columns - 1) * spec.stride[1] + spec.s) + taps
        warps = math.ceil(tiling.blocks / gpu.multiprocessors) * THREADS / WARP
        cycles = warps * GROUP * (READ_CYCLES * read + PRODUCT_CYCLES * taps * tiling.columns)
        moved_us = spec.traffic_bytes / (SHARE * gpu.dram_bytes_s) * 1e6
        return START_US + moved_us + cycles / gpu.clock_hz * 1e6

    def tiling(self, decisions: Mapping[str, Any]) -> DepthwiseTiling:
        return replace(self.any, **decisions)

    def counts(self, tiling: DepthwiseTiling) -> list[float]:
        return [tiling.blocks, tiling.parts]

    def packed_for(self, weight: np.ndarray, tiling: DepthwiseTiling) -> tuple[np.ndarray, int]:
        return packed(weight, self.spec.dtype), 0

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        return self._written(self.checked(decisions))

    def _written(self, tiling: DepthwiseTiling) -> tirx.PrimFunc:
        spec = self.spec
        numbers = [*arguments(PARAMETERS, tiling), tiling.blocks, 1, 1, THREADS, 1, 0]
        units, library = tirx.Var("units", "int32"), LIBRARIES[spec.dtype]
        x, y = map(tiling.in_layout, (spec.input_shape, spec.output_shape))
        return library_call(spec, library, tiling.kernel, units, lambda _: numbers, x=x, y=y, mark=_SPEC)

    @property
    def fastest(self) -> tirx.PrimFunc:
        """The function of the tiling that should be the fastest."""
        return self._written(self.ranked[0][1])


def depthwise_layer_of(func: tirx.PrimFunc) -> ConvSpec | None:
    """The convolution of a function that such a space has written, None of another."""
    return spec_of(func, _SPEC)
