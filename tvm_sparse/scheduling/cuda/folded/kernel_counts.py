"""What a folded CUDA kernel consists of, counted from its decisions before it is built."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tvm_sparse.conv.error_bounds import HALF_SUMS_BLOCK
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, is_half
from tvm_sparse.scheduling.annotations import DEPENDENT_LAUNCH, FOLD, K_TILE_ORDER, PIPELINE_STAGES, Order
from tvm_sparse.scheduling.cuda.folded.thread_layout import ADDRESS, spread

INSTRUCTION_BYTES = 16


class OutputTile(NamedTuple):
    """What the threads of a block compute.

    Each of `threads` has `filters` output channels, `pixels` outputs of each below each other, and in each row so many
    `beside` each other. There are `blocks` for one tile of output channels. `torn`: neighbouring blocks write to the
    same 32 bytes of memory, which are then written twice. `halves`: outputs beside each other are computed together.
    """

    threads: int
    filters: int
    pixels: int
    blocks: int
    beside: int = 1
    torn: bool = False
    halves: bool = False


class KTile(NamedTuple):
    """So many input `channels`, which take `shared_bytes` of shared memory, gaps between rows included.

    `nest` are the extents of its copies, rows and copies of a row last, each of `lanes` elements.
    """

    channels: int
    shared_bytes: int
    nest: tuple[int, ...]
    lanes: int


class Pipeline(NamedTuple):
    """How blocks go through their k-tiles, in `stages` buffers; a multiprocessor should hold `resident` blocks."""

    stages: int
    order: int
    resident: int
    dependent_launch: int

    @property
    def marks(self) -> dict[str, Any]:
        """The annotations that tell code generation of it."""
        return dict(zip((PIPELINE_STAGES, K_TILE_ORDER, FOLD, DEPENDENT_LAUNCH), self, strict=True))


@dataclass(frozen=True)
class KernelCounts:
    """Counts of one kernel.

    * `threads`, `filters`, `pixels`: threads of a block; output channels of a thread, and outputs of each.
    * `blocks`, `tiles`, `splits`: thread blocks for one tile of output channels and one split of the input channels,
      tiles, and splits.
    * `channels`, `k_tiles`: input channels of a k-tile, and k-tiles of a block.
    * `multiply_adds`, `loads`, `floats`: of a thread: multiply-adds, reads of shared memory, and floats that one of
      these takes, on average.
    * `widened`: of a thread: half-precision inputs that become float32, or with `halves` are put beside each other.
    * `halves`: whether a multiply-add is of two outputs at a time, in float16.
    * `copied_bytes`, `k_tile_bytes`, `sums_bytes`: copied by a block in all, and shared memory: of one of its k-tiles,
      and of partial sums.
    * `copies`, `addresses`: of a thread in one k-tile, and how many of them are not just another channel or image
      further on.
    * `flops`, `traffic_bytes`: of the convolution: two for a multiply-add of a non-zero; input once and output as often
      as it is written.
    """

    threads: int
    filters: int
    pixels: int
    blocks: int
    tiles: int
    channels: int
    k_tiles: int
    multiply_adds: float
    loads: float
    copied_bytes: float
    copies: int
    addresses: int
    k_tile_bytes: float
    sums_bytes: int
    flops: int
    traffic_bytes: int
    splits: int
    pipeline: Pipeline
    floats: float
    widened: float = 0.0
    halves: bool = False

    @classmethod
    def together(cls, tiles: Sequence["KernelCounts"], pipelines: Sequence[Pipeline] = ()) -> "KernelCounts":
        """Those of all `tiles`, alike in `splits` and `halves`, as arrays (tiles, 1).

        With each of `pipelines`, arrays (1, pipelines), or each with its own.
        """
        names = [each.name for each in fields(cls) if each.name not in ("pipeline", "splits", "halves")]
        columns = np.array([[getattr(tile, name) for name in names] for tile in tiles], float).T[:, :, None]
        every = object.__new__(cls)
        vars(every).update(zip(names, columns, strict=True), splits=tiles[0].splits, halves=tiles[0].halves)
        own = np.array([each.pipeline for each in tiles]).T[:, :, None]
        vars(every)["pipeline"] = Pipeline(*(np.array(pipelines).T[:, None] if pipelines else own))
        return every

    @property
    def shared_bytes(self) -> float:
        """Shared memory of a block."""
        return self.k_tile_bytes * np.minimum(self.pipeline.stages, self.k_tiles) + self.sums_bytes

    @property
    def rotated(self) -> bool:
        """Whether blocks start at different k-tiles."""
        return self.pipeline.order == Order.ROTATED

    @cached_property
    def instructions(self) -> float:
        """Of a thread, about."""
        # Partial sums are stored, read and added up.
        joining = 3 * self.filters * self.pixels + 2 * self.splits + 20 if self.splits > 1 else 0
        beside = 2 * self.copies * self.k_tiles + ADDRESS * self.addresses + 8 * self.k_tiles
        beside += self.filters * self.pixels + 60
        return self._arithmetic + self.loads + self.widened + beside + joining

    @property
    def _arithmetic(self) -> float:
        """Multiply-adds, and additions of their blocks."""
        return self.multiply_adds / 2 * (1 + 1 / HALF_SUMS_BLOCK) if self.halves else self.multiply_adds

    @property
    def code_bytes(self) -> float:
        """Code of one tile and split."""
        return self.instructions * INSTRUCTION_BYTES

    @property
    def registers(self) -> int:
        """That a thread needs for accumulators, loads in flight and the addresses of its copies, about."""
        return self.filters * self.pixels + 7 + 3 * self.addresses

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // 32)


def kernel_counts(
    spec: ConvSpec, pattern: SparsityPattern, output: OutputTile, k_tile: KTile, pipeline: Pipeline, splits: int = 1
) -> KernelCounts:
    """Counts from a schedule's decisions; `splits` thread blocks share the input channels and add their sums up."""
    threads, filters, pixels, blocks, beside, torn, halves = output
    tiles, density = spec.k // filters, pattern.nnz / pattern.size
    _, per_group, r, s = spec.weight_shape
    # A thread reads an input where some of its filters has a non-zero; inputs are shared by its pixels, and read by as
    # many at once as there are beside each other.
    rows, width = per_group // splits * ((pixels - 1) * min(spec.stride[0], r) + r), s + beside - 1
    read = rows * -(-(-spec.padding[1] % beside + width) // beside)
    outputs = pixels * beside
    k_tiles = per_group // splits // k_tile.channels
    copies = spread(k_tile.nest, len(k_tile.nest) - 2, threads, k_tiles)
    sums = 4 * filters * threads if splits > 1 else 0
    element_bytes, loads = STORAGE[spec.dtype].size_bytes, read * (1 - (1 - density) ** (filters * beside))
    return KernelCounts(
        threads=threads,
        filters=filters,
        pixels=outputs,
        blocks=blocks,
        tiles=tiles,
        channels=k_tile.channels,
        k_tiles=k_tiles,
        multiply_adds=pattern.nnz * outputs / (tiles * splits),
        loads=loads,
        floats=rows * width / read,
        widened=loads * (rows * width / read / (2 if halves else 1)) if is_half(spec.dtype) else 0.0,
        halves=halves,
        copied_bytes=float(element_bytes * math.prod(k_tile.nest) * k_tile.lanes * k_tiles),
        copies=copies.copies,
        addresses=copies.rounds,
        k_tile_bytes=float(k_tile.shared_bytes),
        sums_bytes=sums,
        flops=spec.sparse_flops(pattern.nnz),
        traffic_bytes=spec.traffic_bytes + element_bytes * math.prod(spec.output_shape) * torn,
        splits=splits,
        pipeline=pipeline,
    )
