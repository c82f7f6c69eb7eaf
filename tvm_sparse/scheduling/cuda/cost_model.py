"""What decides the time of a folded CUDA kernel: counts for the cost model, and a first estimate from them.

A folded kernel is bound by its instruction stream, and where it has little code a thread by copies. Constants are those
of an NVIDIA H200 (docs/cuda.md). "Measured" ones come from experiments of their own, "fitted" ones from 1144 kernels of
41 convolutions, timed warm as the tuner does: least squares of the error's logarithm, each convolution alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.annotations import DependentLaunch, Order
from tvm_sparse.scheduling.cuda.thread_layout import ADDRESS, spread
from tvm_sparse.target.gpu import CLOCK_HZ, MULTIPROCESSORS

LEVEL_2_BYTES = 50e6
BANDWIDTH_BYTES_S, FLOPS_S = 4.3e12, 67e12
# Registers of a multiprocessor's four parts, its shared memory, and the warps and thread blocks that it holds.
_REGISTERS, _SHARED_BYTES, _WARPS, _BLOCKS = 16384, 227 * 1024, 64, 32
# Multiprocessors that clusters of 4 and 8 blocks can fill, as they stay within groups of 16 or 18 of them.
_IN_CLUSTERS = 128
# What cuDNN reaches on Table 2 where TF32 is allowed: flops and bytes a second, and its shortest time (fitted).
_CUDNN_FLOPS_S, _CUDNN_BYTES_S, _CUDNN_US = 320e12, 1.7e12, 7.0
# Bytes of an instruction; code up to a size -> cycles an instruction (measured).
_INSTRUCTION = 16
_FETCH_CYCLES = ((32 * 1024, 1.0), (160 * 1024, 2.7), (math.inf, 6.2))
# Thread blocks of a multiprocessor drift apart and share less of what is fetched: so often is it fetched, to this power
# of their number (fitted; 0 were all in step).
_DRIFT = 0.5
# Cycles of a cold instruction (fitted), and where `_TOGETHER` multiprocessors want the same lines at once (measured).
_COLD_CYCLES, _COLD_TOGETHER_CYCLES, _TOGETHER = 7.0, 14.0, 64
# Bytes of cold code that reach all multiprocessors together in a cycle, each tile's and part's once (fitted).
_COLD_BYTES = 115.0
# Code of all tiles and parts that is still cached when the kernel is called again, bytes (fitted).
_KEPT_BYTES = 150 * 1024
# How much longer code takes where blocks are at different chunks and so share less of what is fetched, and warm code
# whose registers do not suffice to issue shared loads well before their use (fitted).
_SLOWER_TURNED, _CRAMPED = 1.38, 1.7
# Registers beside its accumulators that a thread takes where it may (assumed; the fit hardly depends on it).
_OTHER_REGISTERS = 24
# Cycles of a barrier with the wait for copies, where one buffer would be all, and of a block's start and end (fitted).
_BARRIER_CYCLES, _BLOCK_CYCLES = 230.0, 220.0
# Bytes a cycle into a multiprocessor's shared memory: at most, and while all of them copy, 6 TB/s from the level-2
# cache (measured 25; fitted).
_COPIED_BYTES, _COPIED_TOGETHER_BYTES = 64.0, 27.5
# What copies hide of the arithmetic of a multiprocessor's other blocks: 1 would be nothing (fitted).
_OVERLAP = 1.5
# Bytes of partial sums that a block reads in a cycle from the other blocks of its cluster (fitted).
_JOINED_BYTES = 6.0
# Of a kernel in a CUDA graph (fitted).
_LAUNCH_US = 0.55
# How many times as long a kernel takes in a row of its like that start early: where half of the multiprocessors are
# idle; where all execute the same code, or little; where blocks miss their places (measured, warm).
_APART, _ALIKE, _MIXED = 0.95, 1.04, 1.15


@dataclass(frozen=True)
class GpuKernel:
    """Counts of one kernel.

    Parameters
    ----------
    threads, filters, pixels
        Threads of a block; output channels of a thread, and outputs of each.
    blocks, tiles, parts
        Thread blocks for one tile of output channels and one part of the input channels, tiles, and parts.
    channels, chunks
        Input channels a chunk, and chunks.
    multiply_adds, loads, floats
        Of a thread: multiply-adds, reads of shared memory, and floats that one of these takes, on average.
    copied_bytes, shared_bytes
        Copied by a block in all, and its shared memory.
    copies, addresses
        Of a thread in one chunk, and how many of them are not just another channel or image further on.
    depth
        Buffers of the ring.
    resident
        Thread blocks that a multiprocessor should hold at once.
    order
        An `Order`.
    release
        A `DependentLaunch`.
    floor_us
        `floor_us` of the convolution.
    """

    threads: int
    filters: int
    pixels: int
    blocks: int
    tiles: int
    channels: int
    chunks: int
    multiply_adds: float
    loads: float
    copied_bytes: float
    copies: int
    addresses: int
    shared_bytes: float
    depth: int
    resident: int
    floor_us: float
    order: int = Order.STRAIGHT
    release: int = DependentLaunch.AT_EXIT
    parts: int = 1
    floats: float = 1.0

    @classmethod
    def of(
        cls,
        spec: ConvSpec,
        pattern: SparsityPattern,
        *,
        threads: int,
        filters: int,
        pixels: int,
        blocks: int,
        channels: int,
        chunk_bytes: int,
        nest: tuple[int, ...],
        lanes: int,
        depth: int,
        resident: int,
        order: int = Order.STRAIGHT,
        release: int = DependentLaunch.AT_EXIT,
        parts: int = 1,
        torn: bool = False,
        beside: int = 1,
    ) -> GpuKernel:
        """Counts from a schedule's decisions.

        A thread has `pixels` outputs below each other, and in each row so many `beside` each other.
        A chunk takes `chunk_bytes` of shared memory, gaps between rows included; `nest` are the extents of its copies,
        rows and copies of a row last, each of `lanes` floats; `depth` is the number of buffers; `parts` thread blocks
        share the input channels and add their sums up. `torn`: neighbouring blocks write to the same 32 bytes of
        memory, which are then written twice.
        """
        tiles, density = spec.k // filters, pattern.nnz / pattern.size
        _, per_group, r, s = spec.weight_shape
        # A thread reads an input where some of its filters has a non-zero; inputs are shared by its pixels, and read by
        # as many at once as there are beside each other.
        rows, width = per_group // parts * ((pixels - 1) * min(spec.stride[0], r) + r), s + beside - 1
        read = rows * -(-(-spec.padding[1] % beside + width) // beside)
        outputs = pixels * beside
        chunks = per_group // parts // channels
        copies = spread(nest, len(nest) - 2, threads, chunks)
        sums = 4 * filters * threads if parts > 1 else 0
        return cls(
            threads=threads,
            filters=filters,
            pixels=outputs,
            blocks=blocks,
            tiles=tiles,
            channels=channels,
            chunks=chunks,
            multiply_adds=pattern.nnz * outputs / (tiles * parts),
            loads=read * (1 - (1 - density) ** (filters * beside)),
            floats=rows * width / read,
            copied_bytes=4.0 * math.prod(nest) * lanes * chunks,
            copies=copies.copies,
            addresses=copies.rounds,
            shared_bytes=float(chunk_bytes * min(depth, chunks) + sums),
            depth=depth,
            resident=resident,
            floor_us=floor_us(spec, pattern, 2 if torn else 1),
            order=order,
            release=release,
            parts=parts,
        )

    @property
    def turned(self) -> bool:
        """Whether blocks start at different chunks."""
        return self.order == Order.ROTATED

    @property
    def instructions(self) -> float:
        """Of a thread, about."""
        # Partial sums are stored, read and added up.
        joining = 3 * self.filters * self.pixels + 2 * self.parts + 20 if self.parts > 1 else 0
        beside = 2 * self.copies * self.chunks + ADDRESS * self.addresses + 8 * self.chunks
        beside += self.filters * self.pixels + 60
        return self.multiply_adds + self.loads + beside + joining

    @property
    def registers(self) -> int:
        """That a thread needs for accumulators, loads in flight and the addresses of its copies, about."""
        return self.filters * self.pixels + 7 + 3 * self.addresses

    @property
    def available_registers(self) -> int:
        """That a thread may have, with as many blocks on a multiprocessor as it should hold."""
        return min(255, _REGISTERS // (32 * -(-self.threads // 128) * self.resident) // 8 * 8)

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // 32)

    @property
    def resident_blocks(self) -> int:
        """Thread blocks that a multiprocessor holds at once, as registers and shared memory allow.

        `resident` asks for as many at least; a kernel that takes fewer registers has more.
        """
        registers = min(self.available_registers, -(-(self.filters * self.pixels + _OTHER_REGISTERS) // 8) * 8)
        warps = min(4 * (_REGISTERS // (32 * registers)), _WARPS)
        return max(1, min(warps // self.warps, int(_SHARED_BYTES // (self.shared_bytes + 1024)), _BLOCKS))

    @property
    def code_bytes(self) -> float:
        """Code of one tile and part."""
        return self.instructions * _INSTRUCTION

    @property
    def share(self) -> float:
        """Thread blocks for each multiprocessor, one after the other or at once."""
        return self.blocks * self.tiles * self.parts / (MULTIPROCESSORS if self.parts <= 2 else _IN_CLUSTERS)

    @property
    def active_blocks(self) -> int:
        """Thread blocks that a multiprocessor has at once: fewer than `resident_blocks` where there are few in all."""
        return min(self.resident_blocks, math.ceil(self.share))

    @property
    def waves(self) -> float:
        """How often the busiest multiprocessor is filled."""
        return math.ceil(self.share) / self.active_blocks

    def time_us(self) -> float:
        """Estimated time on an H200."""
        cycles = self.waves * self._warm_cycles() + math.ceil(self.waves) * self._waiting_cycles()
        cycles += self._cold_cycles()
        # What DRAM delivers is hidden in part.
        return (math.hypot(cycles / CLOCK_HZ * 1e6, self.floor_us) + _LAUNCH_US) * self._starting_early()

    def _starting_early(self) -> float:
        """How many times as long it takes as one that lets the next start at its exit."""
        if self.release == DependentLaunch.LAST_K_TILE:
            return _APART if self.parts == 1 and self.share <= 0.5 else _MIXED
        if self.release == DependentLaunch.AT_ONCE:
            all_code = self.code_bytes * self.tiles * self.parts
            return _ALIKE if self.tiles * self.parts == 1 or all_code <= _FETCH_CYCLES[0][0] else _MIXED
        return 1.0

    def _warm_cycles(self) -> float:
        """Of all blocks that a multiprocessor has at once, their code in its caches: arithmetic and copies."""
        active = self.active_blocks
        fetch = next(cycles for most, cycles in _FETCH_CYCLES if self.code_bytes <= most)
        if self.code_bytes > _FETCH_CYCLES[0][0]:
            fetch *= active**_DRIFT
        issue = max(
            self.instructions * max(active * self.warps / 4, fetch), active * self.loads * self.floats * self.warps
        )
        issue *= (_SLOWER_TURNED if self.turned else 1) * (_CRAMPED if self.registers > self.available_registers else 1)
        copies = self._copy_cycles(self.copied_bytes)
        if active == 1:
            return issue + copies
        return float((issue**_OVERLAP + copies**_OVERLAP) ** (1 / _OVERLAP))

    def _copy_cycles(self, copied_bytes: float) -> float:
        """Of the copies of all blocks that a multiprocessor has at once, each so many bytes."""
        rate = min(_COPIED_BYTES, _COPIED_TOGETHER_BYTES * max(1.0, 1 / self.share))
        return self.active_blocks * copied_bytes / rate

    def _waiting_cycles(self) -> float:
        """Of the same blocks: their start until the first chunk is there, barriers, and their partial sums."""
        # Behind each barrier warps wait for copies, less where these run further ahead.
        barriers = self.chunks * _BARRIER_CYCLES / self.depth
        sums = 4 * self.filters * self.pixels * self.threads * (self.parts - 1) / self.parts
        start = _BLOCK_CYCLES + self._copy_cycles(self.copied_bytes / self.chunks)
        return start + barriers + self.active_blocks * sums / _JOINED_BYTES

    def _cold_cycles(self) -> float:
        """What is added as code is executed for the first time since the last call."""
        # Each tile's code is cold once, on every multiprocessor, as blocks that run together execute the same tile.
        rounds, all_code = min(self.tiles, math.ceil(self.waves)), self.code_bytes * self.tiles * self.parts
        apart = self.turned and self.code_bytes <= _FETCH_CYCLES[1][0]
        together = 0.0 if apart else min(1.0, self.blocks / _TOGETHER)
        cold = self.instructions * (_COLD_CYCLES + together * (_COLD_TOGETHER_CYCLES - _COLD_CYCLES))
        cold = max(cold * (_SLOWER_TURNED if self.turned else 1), all_code / rounds / _COLD_BYTES)
        return rounds * max(0.0, cold - self._warm_cycles()) * (1 - min(1.0, _KEPT_BYTES / all_code))

    def features(self) -> list[float]:
        """The counts in the form a regression takes them, the estimate among them."""
        filled = self.share / self.active_blocks
        last = math.ceil(filled) / filled
        sizes = (
            self.threads,
            self.filters * self.pixels,
            self.filters,
            self.blocks,
            self.tiles,
            self.parts,
            self.channels,
            self.chunks,
            self.instructions,
            self.instructions / self.chunks,
            self.code_bytes * self.tiles * self.parts,
            self.loads,
            self.loads * self.floats,
            self.copied_bytes,
            self.copies,
            self.addresses,
            self.shared_bytes,
            self.time_us(),
            filled,
        )
        idle = 1 - self.threads / (-(-self.threads // 128) * 128)
        return [
            *(math.log2(1 + size) for size in sizes),
            idle,
            last,
            self.resident_blocks,
            self.pixels,
            self.turned,
            self.release == DependentLaunch.LAST_K_TILE,
            self.release == DependentLaunch.AT_ONCE,
        ]


def floor_us(spec: ConvSpec, pattern: SparsityPattern, writes: int = 1) -> float:
    """What no exact kernel undercuts: flops of the non-zeros, or bytes of input and, `writes` times, output."""
    n, _, height, width = spec.output_shape
    flops = 2 * pattern.nnz * n * height * width
    traffic = _traffic_bytes(spec) + (writes - 1) * 4 * math.prod(spec.output_shape)
    return max(flops / FLOPS_S, traffic / BANDWIDTH_BYTES_S) * 1e6


def cudnn_us(spec: ConvSpec) -> float:
    """About what cuDNN takes on an H200 where it may use TF32; within a factor of two on most of Table 2."""
    busy = max(spec.dense_flops / _CUDNN_FLOPS_S, _traffic_bytes(spec) / _CUDNN_BYTES_S)
    return busy * 1e6 + _CUDNN_US


def _traffic_bytes(spec: ConvSpec) -> int:
    elements = math.prod(spec.input_shape) + math.prod(spec.output_shape) * (2 if spec.residual else 1)
    return 4 * elements
