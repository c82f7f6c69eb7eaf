"""How long a kernel of shared positions should take, and what it needs, from how many positions there are.

A tiling may be many together, with arrays for numbers; what is found then is an array.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.structure import FULL, Structure
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.library.together import either, largest, rounded_up, smallest
from tvm_sparse.scheduling.cuda.slice.tiling import MOST_IN_WORDS, QUAD, SliceTiling
from tvm_sparse.scheduling.family import TF32_VARIANT
from tvm_sparse.target.gpu import GpuInfo

# Cycles of a multiprocessor (an H200): a product of tensor cores, TF32 or half precision, and an instruction of a warp,
# of which four could be issued a cycle and two are.
PRODUCT_CYCLES, ISSUE_CYCLES = 1.8, 0.5
# Bytes a cycle that a multiprocessor takes from the level-2 cache.
L2_BYTES = 40.0
# Cycles of a warp's store, or read of a residual, where each lane has one element: maps of 7x7, whose rows two
# pixels do not divide (layers of ResNet-50 on 64 images, an H100).
ALONE_CYCLES = 50.0
# Instructions of a k-step: for a read of inputs and for 16 filters, by what is multiplied.
ISSUED = {FLOAT32: (4, 13), TF32_VARIANT: (1, 1), FLOAT16: (5, 1), BFLOAT16: (5, 1)}
# Instructions: a copy to shared memory, a warp's others, and of a chunk; by bytes of an element, what writing a pair of
# pixels of 16 filters takes, and reading their residual (half precision: fitted to 1,373 kernels on an H200).
COPY_ISSUED, WARP_ISSUED, CHUNK_ISSUED = 18, 250, 80
STORE_ISSUED, RESIDUAL_ISSUED = {2: 75, 4: 28}, {2: 85, 4: 0}
# Cycles: of a launch's first instructions and its last stores, of a chunk from its first copy to its first product, and
# of a k-step beside its products.
LAUNCH_CYCLES, CHUNK_CYCLES, STEP_CYCLES = 2000.0, 1500.0, 120.0


@dataclass(frozen=True)
class Positions:
    """How many positions and channels filters of a weight use, as far as its pattern tells.

    A filter has the share `density` of all positions, and `alike` filters have the same ones, in the share `slices` of
    all slices, of which a channel has `channel_slices`. A tile of `tile` filters has the same slices.
    """

    channels: int
    taps: int
    density: float
    alike: int
    slices: float
    channel_slices: int
    tile: int

    @classmethod
    def of(cls, spec: ConvSpec, pattern: SparsityPattern) -> "Positions":
        """Those of a weight of that pattern."""
        channels, taps = spec.c // spec.groups, spec.r * spec.s
        density, name = pattern.density, pattern.structure
        structure = Structure.named(name) if name.startswith(("vector", "slice")) else Structure(name)
        if not structure.slices:
            return cls(channels, taps, density, structure.vector, density, taps, structure.vector)
        in_slices = 1 if structure.slices == "c" else spec.r
        if structure.vector > 1:
            # Vectors are as sparse within slices as slices are (`conv.structured_mask`).
            return cls(channels, taps, density, structure.vector, math.sqrt(density), in_slices, structure.tile)
        share = min(1.0, density / FULL)
        return cls(channels, taps, share, structure.tile, share, in_slices, structure.tile)

    def of_filters(self, filters: Any) -> Any:
        """The share of all positions that any of so many filters has."""
        return 1 - (1 - self.density) ** largest(1.0, filters / self.alike)

    def live_channels(self, filters: Any) -> Any:
        """Channels that any of so many filters uses."""
        independent = largest(1.0, filters / self.tile) * self.channel_slices
        return largest(1.0, self.channels * (1 - (1 - self.slices) ** independent))

    def work(self, tiling: SliceTiling) -> "Work":
        """What a block has to do."""
        chunks, unit = rounded_up(self.live_channels(tiling.filters) / tiling.channels), QUAD * tiling.quads
        per_chunk = self.of_filters(tiling.warp_filters) * self.channels * self.taps / chunks / unit
        # The last step of a chunk is half empty, unless all is in few.
        steps = chunks * either(chunks == 1, rounded_up(per_chunk), largest(1.0, per_chunk + 0.5))
        per_warp = rounded_up(steps / chunks * 1.15 + 0.5)
        return Work(chunks, steps, tiling.first_step + tiling.step_units * tiling.filter_warps * per_warp)

    def room_in_words(self, tiling: SliceTiling) -> Any:
        """How many positions words of two have room for, as a multiple of those that a warp uses; 0 where none is read.

        A row of taps may begin in the middle of a word.
        """
        used, row = self.of_filters(tiling.warp_filters), tiling.spec.s
        if not self.density or not tiling.may_read_words:
            return 0.0
        room = 2 * (row // 2 + 1) / row * (1 - (1 - used) ** 2) / used
        return either(room <= MOST_IN_WORDS, room, 0.0)

    def shared_bytes(self, tiling: SliceTiling) -> Any:
        """About how much shared memory a block needs."""
        work = self.work(tiling)
        return tiling.shared_bytes(work.chunks, work.stride)


class Work(NamedTuple):
    """Chunks of a block's channels, k-steps of a warp's filters in all of them, and about how many 16-byte units a
    chunk's weights take.
    """

    chunks: Any
    steps: Any
    stride: Any


def estimated_us(tiling: SliceTiling, positions: Positions, gpu: GpuInfo) -> Any:
    """Estimated time in microseconds: what keeps a multiprocessor busiest, or how long its blocks wait."""
    work = positions.work(tiling)
    resident = _resident(tiling, tiling.shared_bytes(work.chunks, work.stride), gpu)
    waves = rounded_up(tiling.blocks / (gpu.multiprocessors * resident))
    # In the last wave a multiprocessor may have fewer blocks.
    most = rounded_up(tiling.blocks / gpu.multiprocessors)
    busy, waiting = _busy_cycles(tiling, positions, work, gpu), _waiting_cycles(tiling, work)
    cycles = largest(most * busy, waves * (waiting + busy * (resident + 1) / 2))
    # In a model weights come from memory: 43 us for 39 of one of 8.6 MB, in an H200's.
    read_bytes = 16 * tiling.k_tiles * work.chunks * work.stride
    return 1.5 + cycles / gpu.clock_hz * 1e6 + read_bytes / gpu.dram_bytes_s * 1e6


def _resident(tiling: SliceTiling, shared_bytes: Any, gpu: GpuInfo) -> Any:
    """Blocks of a multiprocessor at the same time."""
    # As compiled for an H200, rounded.
    registers = smallest(200, 60 + 4 * tiling.m_tiles * tiling.n_tiles * 5 // 4 + 8 * tiling.m_tiles)
    by_registers = 4 * gpu.quarter_registers // (registers * WARP * tiling.warps)
    by_memory = gpu.shared_bytes // (shared_bytes + gpu.reserved_bytes)
    return largest(1, smallest(by_registers, gpu.warps // tiling.warps, by_memory))


def _busy_cycles(tiling: SliceTiling, positions: Positions, work: Work, gpu: GpuInfo) -> Any:
    """Cycles of a multiprocessor for a block, if it never waits."""
    spec, size = tiling.spec, tiling.element_bytes
    m, n, chunks = tiling.m_tiles, tiling.n_tiles, work.chunks
    products = m * n * tiling.products
    room = positions.room_in_words(tiling)
    warp_steps = work.steps * tiling.filter_warps * tiling.pixel_warps * either(room > 0, room, 1.0)
    inputs = n * either(room > 0, tiling.quads // 2, tiling.quads)
    # Reads of shared memory, 128 bytes a cycle: of the input, of fragments, of offsets.
    reads = inputs * 1.4 + 4 * m + 2
    of_input, of_filters = ISSUED[tiling.multiplied]
    issued = products + inputs * of_input + m * of_filters + 12
    live = smallest(chunks * tiling.channels, positions.live_channels(tiling.filters))
    copied = live * tiling.images * tiling.staged_rows * (tiling.columns if tiling.is_pointwise else spec.w)
    weights = chunks * work.stride * 16
    copies = copied / tiling.vector + weights / 16
    stores = tiling.warps / tiling.k_warps * m * n * (STORE_ISSUED[size] + spec.residual * RESIDUAL_ISSUED[size])
    others = copies / WARP * COPY_ISSUED + tiling.warps * (WARP_ISSUED + chunks * CHUNK_ISSUED) + stores
    written = tiling.filters * tiling.images * tiling.rows * tiling.columns * size * (2 if spec.residual else 1)
    dram = gpu.dram_bytes_s * 0.85 / gpu.multiprocessors / gpu.clock_hz
    # The input comes from memory once, for all tiles of filters.
    moved = (written + copied * size / tiling.k_tiles) / dram
    issue = ISSUE_CYCLES * (warp_steps * issued + others)
    pairs = tiling.warps / tiling.k_warps * m * n * 2
    issue = issue + either(tiling.aligned == 1, 2 * pairs * ALONE_CYCLES * (2 if spec.residual else 1), 0.0)
    return largest(warp_steps * products * PRODUCT_CYCLES, warp_steps * reads, issue, moved, copied * size / L2_BYTES)


def _waiting_cycles(tiling: SliceTiling, work: Work) -> Any:
    """Cycles from a block's beginning to its end, if others never hold it up."""
    products = tiling.m_tiles * tiling.n_tiles * tiling.products
    steps = work.steps / tiling.k_warps * (STEP_CYCLES + products * 8)
    exposed = CHUNK_CYCLES / tiling.stages
    return LAUNCH_CYCLES + CHUNK_CYCLES + (work.chunks - 1) * exposed + steps
