"""Dense convolution for CPUs: vectors of filters (`cpu.filters`), channels (`cpu.channels`) or rows (`cpu.rows`).

The baseline every folded kernel must beat, and what a layer falls to that is not sparse enough. On the layers of ResNet
default decisions take 0.9 to 1.07 times as long as the faster of ONNX Runtime and oneDNN with AVX2, with AVX-512 in a
network 0.9 to 1.2 times, on maps of 56x56 up to 1.7 times (docs/lab/cpu-dense.md).
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.channels import ChannelSpace, serves
from tvm_sparse.scheduling.cpu.cuts import Threads
from tvm_sparse.scheduling.cpu.filters import (
    HIDING_SUMS,
    FilterSpace,
    FormerFilterSpace,
    fetches_outputs,
    fitting_vectors,
)
from tvm_sparse.scheduling.cpu.product import ProductSpace
from tvm_sparse.scheduling.cpu.rows import TILE, RowSpace, layout_named, layouts, layouts_of_tile, packs
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "dense_cpu"
# Layouts of rows offered to the search; fewer than for folded kernels, since all of them run near the machine's peak.
LAYOUTS = 2
# Vectors of filters in a register tile, the better first, for filters of one tap and of several; fewer where there are
# fewer filters. The sums of four and the pixels of a tile do not fit 16 registers.
VECTORS_OF_TAP, VECTORS, VECTORS_OF_FEW = (4, 2), (2, 4), (2,)
# Channels that two vectors sum up at once, so that their outputs are fetched meanwhile (`cpu.filters`): in ResNet-50
# layers of one tap on 56x56 and 28x28 take 0.90 to 0.96 of the time then, and four vectors gain less or nothing.
MOST_AT_ONCE = 128
# Filters of a group that one register tile serves. Maps of fewer pixels are packed faster for all channels at once:
# with 32 registers, and with 16.
FILTERS_OF_GROUP, PIXELS_OF_GROUP, PIXELS_OF_GROUP_OF_FEW = 8, 128, 256
# Depthwise maps of so many pixels at most are faster by vectors of channels than along rows, and of more than so many
# taps smaller ones with 32 registers.
FEW_PIXELS, FEW_TAPS, PIXELS_OF_MANY_TAPS = 784, 9, 196
# How many times as long as their multiply-adds kernels of rows take: with 32 registers, where they pack the input of
# one tap (576x96x1x1 on 14x14: 198 us, by vectors of filters 148), and with 16 (docs/lab/cpu-dense.md).
ROWS_COST, ROWS_COST_OF_PACKED_TAP, ROWS_COST_OF_FEW = 1.1, 1.27, 1.2
# The same where they read more than so many channels as they lie in memory, each in pages of its own (24x144x1x1 on
# 56x56: 595 us, by vectors of filters 432, a quarter of whose lanes are idle).
MANY_CHANNELS, ROWS_COST_OF_MANY = 64, 1.4
# Threads that share rows so well are as busy as those that share blocks of filters.
EVEN = 1.1


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some."""
    cpu = CpuInfo.of(target)
    if is_linear(spec):
        return [ProductSpace(NAME, spec, cpu.lanes, thread_count(target))]
    return [*_ranked(spec, cpu, Threads.of(target, math.prod(spec.weight_shape)))]


@lru_cache(maxsize=1024)
def imbalance(spec: ConvSpec, cpu: CpuInfo, threads: int) -> float:
    """How many times as long as one thread's share of the work of a convolution `threads` take by default."""
    return _ranked(spec, cpu, Threads(threads, math.prod(spec.weight_shape), cpu.lanes))[0].imbalance


def _ranked(spec: ConvSpec, cpu: CpuInfo, threads: Threads) -> Sequence[FilterSpace | RowSpace | ChannelSpace]:
    by_rows = layouts(spec, cpu.lanes, threads=threads)[:LAYOUTS]
    rows = [RowSpace(NAME, spec, layout, packs(spec, layout)[0], cpu, False, threads) for layout in by_rows]
    has_many = cpu.has_many_registers
    if spec.groups > 1:
        # To pack all of the input first takes up to 1.7 times as long as to pack blocks of it.
        rows.sort(key=lambda space: space.pack == "root")
        by_tile = _of_groups(spec, cpu, threads)
        is_small = spec.out_h * spec.out_w < (PIXELS_OF_GROUP if has_many else PIXELS_OF_GROUP_OF_FEW)
        # All channels of a small map are one task.
        by_rows_or_tile = [*rows, *by_tile] if is_small and threads.count == 1 else [*by_tile, *rows]
        by_channels = _of_channels(spec, cpu, threads)
        return [*by_channels, *by_rows_or_tile] if _has_short_rows(spec, cpu) else [*by_rows_or_tile, *by_channels]
    # Pairs of vectors are the better tiles where a multiply-add broadcasts the weight.
    rows.sort(key=lambda space: space.layout.vectors % 2 if cpu.has_memory_broadcast else space.sums < HIDING_SUMS)
    is_at_once = spec.c <= MOST_AT_ONCE and fetches_outputs(spec)
    by_taps = VECTORS if spec.r * spec.s > 1 or is_at_once else VECTORS_OF_TAP
    offered = by_taps if has_many else VECTORS_OF_FEW
    vectors = fitting_vectors(spec, cpu, offered, threads.count)
    filters = [FilterSpace(NAME, spec, cpu, each, threads.count) for each in vectors]
    rows_cost = _rows_cost(spec, rows[0], has_many) * by_rows[0].waste(spec)
    rows_cost *= rows[0].imbalance if rows[0].imbalance > EVEN else 1.0
    ranked = sorted(filters, key=lambda space: space.cost)
    return [*ranked, *rows] if ranked[0].cost <= rows_cost else [*rows, *ranked]


def _rows_cost(spec: ConvSpec, space: RowSpace, has_many_registers: bool) -> float:
    """How many times as long as their multiply-adds kernels of rows take that have no idle lanes."""
    if space.pack == "direct" and spec.c > MANY_CHANNELS:
        return ROWS_COST_OF_MANY
    if not has_many_registers:
        return ROWS_COST_OF_FEW
    return ROWS_COST_OF_PACKED_TAP if spec.r * spec.s == 1 and space.pack != "direct" else ROWS_COST


def _of_groups(spec: ConvSpec, cpu: CpuInfo, threads: Threads) -> list[RowSpace]:
    """Those of a grouped convolution whose tiles of filters are whole groups, such as a depthwise one."""
    if spec.k // spec.groups > FILTERS_OF_GROUP:
        return []
    offered = [each for each in layouts_of_tile(spec, cpu.lanes) if not each.reads_input(spec)][:LAYOUTS]
    return [RowSpace(NAME, spec, layout, TILE, cpu, False, threads) for layout in offered]


def _of_channels(spec: ConvSpec, cpu: CpuInfo, threads: Threads) -> list[ChannelSpace]:
    """The one of a depthwise convolution by vectors of channels, of half as many as a register has where it must."""
    fitting = [each for each in (cpu.lanes, cpu.lanes // 2) if serves(spec, each)]
    return [ChannelSpace(NAME, spec, each, threads.count) for each in fitting[:1]]


def _has_short_rows(spec: ConvSpec, cpu: CpuInfo) -> bool:
    """Whether vectors along rows leave lanes idle or are split by phases, so that those of channels are faster."""
    pixels = spec.out_h * spec.out_w
    if spec.stride != (1, 1):
        return True
    if spec.r * spec.s <= FEW_TAPS:
        return pixels <= FEW_PIXELS
    return pixels <= PIXELS_OF_MANY_TAPS and cpu.has_many_registers


def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of a layout of rows or a block of channels, offered or not, or of older records, ``filters16``."""
    cpu, found = CpuInfo.of(target), re.fullmatch(r"filters([1-9]\d*)", variant)
    threads = Threads.of(target, math.prod(spec.weight_shape))
    if is_linear(spec):
        return None
    if channels := re.fullmatch(r"channels([1-9]\d?)", variant):
        count = int(channels[1])
        return ChannelSpace(NAME, spec, count, threads.count) if count <= cpu.lanes and serves(spec, count) else None
    if rows := layout_named(spec, cpu.lanes, variant):
        return RowSpace(NAME, spec, *rows, cpu, False, threads)
    if not found or spec.groups > 1:
        return None
    vectors, rest = divmod(int(found[1]), cpu.lanes)
    is_tile = not rest and vectors <= max(VECTORS)
    return FormerFilterSpace(NAME, spec, cpu, vectors, threads.count) if is_tile else None


FAMILY = KernelFamily(NAME, "llvm", spaces, named, is_dense=True)
