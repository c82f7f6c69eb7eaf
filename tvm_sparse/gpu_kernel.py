"""What decides the time of a folded CUDA kernel: counts for the cost model, and a first estimate from them.

A folded kernel is bound by its instruction stream. Rates are those measured on an NVIDIA H200 (docs/cuda.md): code that
one multiprocessor holds runs at full rate, code that a group of them holds at 2.7 cycles an instruction however many
warps execute it, anything else at 6 cycles, and cold code at 14 where all multiprocessors ask for the same lines at
once, else at about 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_sparse.conv import ConvSpec
from tvm_sparse.pattern import SparsityPattern

# The card: multiprocessors, their clock, bytes of DRAM and flops a second.
MULTIPROCESSORS, CLOCK_HZ = 132, 1.9e9
BANDWIDTH_BYTES_S, FLOPS_S = 4.3e12, 67e12
# Registers of a multiprocessor's four parts, and its shared memory.
_REGISTERS, _SHARED_BYTES = 16384, 227 * 1024
# What cuDNN reaches with TF32 tensor cores on Table 2: flops and bytes a second, and its shortest time.
_CUDNN_FLOPS_S, _CUDNN_BYTES_S, _CUDNN_US = 340e12, 2.0e12, 5.0
# Bytes of an instruction; code up to a size -> cycles an instruction.
_INSTRUCTION = 16
_FETCH_CYCLES = ((32 * 1024, 1.0), (160 * 1024, 2.7), (math.inf, 6.2))
_COLD_CYCLES, _COLD_TOGETHER_CYCLES, _TOGETHER = 5.0, 14.0, 64
# Share of a kernel's issue slots, all multiprocessors together, that adds to its time.
_WORK = 0.2
# How much longer code takes whose registers do not suffice to issue shared loads well before their use.
_CRAMPED = 1.25
# How much longer warm code takes where blocks are at different chunks and so share less of what is fetched.
_TURNED = 1.25
# Cycles of a barrier with the wait for copies, and of a block's start and end.
_BARRIER_CYCLES, _BLOCK_CYCLES = 300.0, 1500.0
# Bytes that reach a multiprocessor's shared memory in a cycle while all of them copy: 6 TB/s from the level-2 cache.
_COPIED_BYTES = 25.0
# Instructions that compute where one of a thread's copies in a chunk comes from and goes to.
_ADDRESS = 20
_LAUNCH_US = 1.0
# Multiprocessors that clusters of 4 and 8 blocks can fill, as they stay within groups of 16 or 18 of them; what the
# start of a cluster, its two barriers and the way to another multiprocessor's shared memory cost, about.
_IN_CLUSTERS, _CLUSTER_CYCLES = 128, 2000.0


@dataclass(frozen=True)
class GpuKernel:
    """Counts of one kernel.

    Parameters
    ----------
    threads, filters, pixels
        Threads of a block; output channels and outputs below each other of a thread.
    blocks, tiles, parts
        Thread blocks for one tile of output channels and one part of the input channels, tiles, and parts.
    channels, chunks
        Input channels a chunk, and chunks.
    multiply_adds, loads
        Of a thread: multiply-adds and reads of shared memory.
    copied_bytes, shared_bytes
        Copied by a block in all, and its shared memory.
    copies
        Of a thread in one chunk.
    depth
        Buffers of the ring.
    resident
        Thread blocks that a multiprocessor should hold at once.
    turned
        Whether blocks start at different chunks.
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
    shared_bytes: float
    depth: int
    resident: int
    turned: bool
    floor_us: float
    parts: int = 1

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
        chunk_floats: int,
        lanes: int,
        depth: int,
        resident: int,
        turned: bool,
        parts: int = 1,
    ) -> GpuKernel:
        """Counts from a schedule's decisions.

        A chunk takes `chunk_bytes` of shared memory, gaps between rows included, and `chunk_floats` are copied for it,
        `lanes` at once; `depth` is the number of buffers; `parts` thread blocks share the input channels and add their
        sums up.
        """
        tiles, density = spec.k // filters, pattern.nnz / pattern.size
        _, per_group, r, s = spec.weight_shape
        # A thread reads an input where some of its filters has a non-zero; rows are shared by its pixels.
        read = per_group // parts * s * ((pixels - 1) * min(spec.stride[0], r) + r)
        chunks = per_group // parts // channels
        sums = 4 * filters * threads if parts > 1 else 0
        return cls(
            threads=threads,
            filters=filters,
            pixels=pixels,
            blocks=blocks,
            tiles=tiles,
            channels=channels,
            chunks=chunks,
            multiply_adds=pattern.nnz * pixels / (tiles * parts),
            loads=read * (1 - (1 - density) ** filters),
            copied_bytes=4.0 * chunk_floats * chunks,
            copies=-(-chunk_floats // (lanes * threads)),
            shared_bytes=float(chunk_bytes * min(depth, chunks) + sums),
            depth=depth,
            resident=resident,
            turned=turned,
            floor_us=floor_us(spec, pattern),
            parts=parts,
        )

    @property
    def instructions(self) -> float:
        """Of a thread, about."""
        copies = self.copies * self.chunks
        # Partial sums are stored, read and added up.
        joining = 3 * self.filters * self.pixels + 2 * self.parts + 20 if self.parts > 1 else 0
        beside = 2 * copies + _ADDRESS * self.copies + 8 * self.chunks + self.filters * self.pixels + 60
        return self.multiply_adds + self.loads + beside + joining

    @property
    def registers(self) -> int:
        """That a thread needs for accumulators, loads in flight and the addresses of its copies, about."""
        return self.filters * self.pixels + 7 + 3 * self.copies

    @property
    def available_registers(self) -> int:
        """That a thread may have, with as many blocks on a multiprocessor as it should hold."""
        return min(255, _REGISTERS // (32 * -(-self.threads // 128) * self.resident) // 8 * 8)

    @property
    def resident_blocks(self) -> int:
        """Thread blocks that a multiprocessor holds at once, as registers and shared memory allow."""
        registers = (self.filters * self.pixels + 16) * 32 * -(-self.threads // 128)
        allowed = min(_REGISTERS // registers, int(_SHARED_BYTES // (self.shared_bytes + 1024)), 2048 // self.threads)
        return max(1, min(allowed, self.resident))

    @property
    def available(self) -> int:
        """Multiprocessors that its blocks can be on."""
        return MULTIPROCESSORS if self.parts <= 2 else _IN_CLUSTERS

    @property
    def active_blocks(self) -> int:
        """Thread blocks that a multiprocessor has at once: fewer than `resident_blocks` where there are few in all."""
        return min(self.resident_blocks, math.ceil(self.blocks * self.tiles * self.parts / self.available))

    @property
    def waves(self) -> float:
        """How often every multiprocessor is filled."""
        return self.blocks * self.tiles * self.parts / (self.available * self.active_blocks)

    def time_us(self) -> float:
        """Estimated time on an H200."""
        active, code = self.active_blocks, self.instructions * _INSTRUCTION
        fetch = next(cycles for most, cycles in _FETCH_CYCLES if code <= most)
        issue = active * -(-self.threads // 128)
        shared = active * self.loads * self.threads / 32
        cycles = max(self.instructions * max(issue, fetch), shared)
        # Behind each barrier warps wait for copies, less where these run further ahead.
        cycles += self.chunks * _BARRIER_CYCLES * 3 / self.depth / active + _BLOCK_CYCLES
        cycles += active * self.copied_bytes / _COPIED_BYTES
        cycles += _CLUSTER_CYCLES if self.parts > 1 else 0
        if self.turned:
            cycles *= _TURNED
        if self.registers > self.available_registers:
            cycles *= _CRAMPED
        # Cold code is dear where `_TOGETHER` multiprocessors or more ask for the same lines at once.
        together = min(1.0, self.blocks / _TOGETHER) * (0 if self.turned and code <= _FETCH_CYCLES[1][0] else 1)
        cold = self.instructions * (_COLD_CYCLES + together * (_COLD_TOGETHER_CYCLES - _COLD_CYCLES))
        # Each tile's code is cold once, on every multiprocessor, as blocks that run together execute the same tile.
        cold_passes = min(self.tiles * self.parts, math.ceil(self.waves))
        total = math.ceil(self.waves) * cycles + cold_passes * max(0.0, cold - cycles)
        # Of two kernels that fill the card alike the one with less work in all is faster.
        work = (
            self.instructions * -(-self.threads // 32) * self.blocks * self.tiles * self.parts / (4 * MULTIPROCESSORS)
        )
        total += _WORK * work
        return max(total / CLOCK_HZ * 1e6, self.floor_us) + _LAUNCH_US

    def features(self) -> list[float]:
        """The counts in the form a regression takes them, the estimate among them."""
        waves = self.waves
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
            self.instructions * _INSTRUCTION,
            self.instructions * _INSTRUCTION * self.tiles,
            self.loads,
            self.copied_bytes,
            self.copies,
            self.shared_bytes,
            self.time_us(),
            waves,
        )
        idle = 1 - self.threads / (-(-self.threads // 128) * 128)
        last = math.ceil(waves) / waves
        return [*(math.log2(1 + size) for size in sizes), idle, last, self.resident_blocks, self.pixels, self.turned]


def floor_us(spec: ConvSpec, pattern: SparsityPattern) -> float:
    """What no exact kernel undercuts on an H200: flops of the non-zeros, or bytes of input and output once."""
    n, _, height, width = spec.output_shape
    flops = 2 * pattern.nnz * n * height * width
    return max(flops / FLOPS_S, _traffic_bytes(spec) / BANDWIDTH_BYTES_S) * 1e6


def cudnn_us(spec: ConvSpec) -> float:
    """About what cuDNN takes on an H200 where it may use TF32; within a factor of two on most of Table 2."""
    busy = max(spec.dense_flops / _CUDNN_FLOPS_S, _traffic_bytes(spec) / _CUDNN_BYTES_S)
    return busy * 1e6 + _CUDNN_US


def _traffic_bytes(spec: ConvSpec) -> int:
    elements = math.prod(spec.input_shape) + math.prod(spec.output_shape) * (2 if spec.residual else 1)
    return 4 * elements
