"""The space of linear layers on many images on tensor cores (codegen/cuda/linear_tensor.cu)."""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from tvm import tirx

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.library_call import library_call
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.cuda.linear_tensor.kernels import LIBRARY, PARAMETERS
from tvm_sparse.scheduling.cuda.linear_tensor.packing import packed
from tvm_sparse.scheduling.cuda.linear_tensor.tiling import (
    FILTERS,
    IMAGES,
    K_BLOCK,
    PARTS,
    QUAD,
    QUAD_BYTES,
    THREADS,
    LinearTensorTiling,
)
from tvm_sparse.target.gpu import GpuInfo

# Cycles of a k-block besides its products, of a block before its first k-block and behind its last, and of blocks that
# share a tile; microseconds to start: of fourteen kernels on an H200 (docs/lab/linear.md).
K_BLOCK_CYCLES, BLOCK_CYCLES, JOIN_CYCLES, START_US = 480, 5000, 3000, 3.0
# Accesses of shared memory that 32 threads take to write one number each of a list.
LIST_ACCESSES = 1.7
# Elements of a tensor at most.
MAX_ELEMENTS = 2**31 - 1
DENSE = "dense"


class LinearTensorSpace(LibrarySpace[LinearTensorTiling]):
    """The space of all tilings of a linear layer whose weights are lists of non-zeros, or `dense`."""

    def __init__(self, name: str, spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo, dense: bool):
        super().__init__(name, DENSE if dense else "", spec, gpu)
        self.pattern, self.dense = pattern, dense

    @cached_property
    def candidates(self) -> dict[str, list[int]]:
        """Decisions and their values."""
        # No more than the layer has, filled up.
        filters = [each for each in FILTERS if each <= max(FILTERS[0], 1.25 * self.spec.k)]
        images = [each for each in IMAGES if each == IMAGES[0] or self.spec.n > IMAGES[0]]
        return {"filters": filters, "images": images, "parts": list(PARTS)}

    def tilings(self) -> Iterator[LinearTensorTiling]:
        for filters, images, parts in product(*self.candidates.values()):
            yield LinearTensorTiling(self.spec, filters, images, parts, self.dense)

    def obstacle(self, tiling: LinearTensorTiling) -> str:
        if tiling.obstacle:
            return tiling.obstacle
        if (elements := self.spec.n * max(self.spec.c, self.spec.k)) > MAX_ELEMENTS:
            return f"a tensor of {elements} elements, at most {MAX_ELEMENTS}"
        return self.lacks_shared_memory(tiling.shared_bytes)

    def _list_quads(self, tiling: LinearTensorTiling) -> float:
        """Of a k-block, about."""
        return self.pattern.nnz / (tiling.tiles * tiling.k_blocks * QUAD) + 0.4

    def estimated_us(self, tiling: LinearTensorTiling) -> float:
        """Estimated time: a block's k-blocks in turn, each bound by products, shared memory or its inputs."""
        gpu, blocks, groups = self.gpu, math.prod(tiling.grid), tiling.images // IMAGES[0]
        # Two products of 8 inputs, 1024 multiply-adds of a multiprocessor a cycle; B is read at half the full rate.
        products = groups * tiling.places / 8
        # Written, read where it is from, and made zero again; or written twice.
        quads = self._list_quads(tiling)
        lists = quads * (4 * QUAD * LIST_ACCESSES / 32 + 3 * QUAD_BYTES / 128)
        shared = products / 2 + (tiling.places * 8 / 128 if self.dense else lists)
        at_once = min(blocks, gpu.multiprocessors)
        read = 4 * tiling.images * K_BLOCK * at_once / gpu.level_2_bytes_s * gpu.clock_hz
        k_block_bytes = 4 * tiling.places if self.dense else QUAD_BYTES * quads
        weights_us = k_block_bytes * tiling.tiles * tiling.k_blocks * tiling.grid[2] / gpu.dram_bytes_s * 1e6
        k_block = max(products, shared, read) + K_BLOCK_CYCLES
        block = tiling.part_k_blocks * k_block + BLOCK_CYCLES + (JOIN_CYCLES if tiling.parts > 1 else 0)
        waves = self.waves(blocks, tiling.parts)
        outputs_us = 4 * tiling.spec.n * tiling.spec.k / gpu.dram_bytes_s * 1e6
        return START_US + outputs_us + max(waves * block / gpu.clock_hz * 1e6, weights_us)

    def tiling(self, decisions: Mapping[str, Any]) -> LinearTensorTiling:
        return LinearTensorTiling(self.spec, **decisions, dense=self.dense)

    def counts(self, tiling: LinearTensorTiling) -> list[float]:
        return [math.prod(tiling.grid), tiling.part_k_blocks, self._list_quads(tiling)]

    def packed_for(self, weight: np.ndarray, tiling: LinearTensorTiling) -> tuple[np.ndarray, int]:
        return packed(weight, tiling), tiling.shared_bytes

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        tiling = self.checked(decisions)
        # TVM tells CUDA once how much a kernel may ask for.
        launch = (*tiling.grid, THREADS, tiling.parts, self.gpu.block_shared_bytes)
        units = tirx.Var("units", "int32")
        numbers = [*arguments(PARAMETERS, tiling), *launch]
        return library_call(self.spec, LIBRARY, tiling.kernel, units, lambda _: numbers)
