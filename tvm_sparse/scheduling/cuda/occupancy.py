"""What fits a multiprocessor: shared memory and registers of folded kernels, judged before they are built."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_sparse.scheduling.cuda.cost_model import GpuKernel
from tvm_sparse.scheduling.cuda.thread_layout import MAX_ADDRESSES
from tvm_sparse.scheduling.space import Space, decided

# Threads of a block at most.
MAX_THREADS = 768
# Accumulators of a thread at most; more spill.
ACCUMULATORS = 64
# Registers that a thread needs beside its accumulators: fewer than this and accumulators spill.
OTHER_REGISTERS = 14
# Registers that addresses and copies take in any kernel.
MIN_REGISTERS = 48
# 32-bit registers of one of a multiprocessor's four parts, and how many a thread may have.
REGISTERS, MAX_REGISTERS = 16384, 255
# Buffers of a ring. Small chunks need six: with five on their way, 10 input channels, three blocks of 16x16 pixels took
# 334 us where three on their way took 341 (operator 10 at batch 64).
DEPTHS = [3, 4, 6]
# Decisions of a space that a search begins with.
STARTS = 3
# Chunks and copies between them in the code of all tiles and parts, at most: each costs milliseconds to write and to
# compile. Large weights may have one for each `SHARE` multiply-adds, as these take longer.
MAX_PIECES, SHARE = 4096, 8
# What the driver and kernels of several translation units (`separate_compilation`) keep for themselves of each
# block's shared memory, bytes.
_RESERVED = 1024 + 64


def warps_a_part(threads: int) -> int:
    """Warps that a block of `threads` threads puts on the fullest of a multiprocessor's four parts."""
    return -(-threads // 128)


def blocks_default(threads: int, accumulators: int) -> int:
    """Thread blocks that a multiprocessor should hold at once: three at most, as registers allow without spills."""
    registers = warps_a_part(threads) * 32 * (accumulators + OTHER_REGISTERS)
    return min(max(REGISTERS // registers, 1), 3)


def refusal(threads: int, accumulators: int, blocks: int, shared_bytes: int, shared_limit: int) -> str:
    """Why a kernel is not worth building, or ""; `blocks` are the thread blocks that it wants on a multiprocessor."""
    available = REGISTERS // (warps_a_part(threads) * blocks * 32) // 8 * 8
    needed = max(accumulators + OTHER_REGISTERS, MIN_REGISTERS)
    if needed > min(available, MAX_REGISTERS):
        return f"{needed} registers a thread are needed and {available} there with {blocks} blocks of {threads} threads"
    if blocks * (shared_bytes + _RESERVED) > shared_limit:
        return f"{blocks} blocks need {blocks * shared_bytes} bytes of shared memory and there are {shared_limit}"
    return ""


def refused(kernel: GpuKernel, shared_limit: int) -> str:
    """`refusal` of a kernel's counts, and where its code would take more than seconds to build."""
    tiles, later = kernel.tiles * kernel.parts, max(0, kernel.chunks - kernel.depth + 1)
    pieces, most = (
        tiles * (kernel.chunks + later * kernel.copies),
        max(MAX_PIECES, tiles * kernel.multiply_adds / SHARE),
    )
    if pieces > most:
        return f"{pieces} chunks and copies of all tiles and parts, at most {most:.0f}"
    if kernel.addresses > MAX_ADDRESSES:
        return f"{kernel.addresses} addresses of a thread's copies in one chunk, at most {MAX_ADDRESSES}"
    accumulators = kernel.filters * kernel.pixels
    return refusal(kernel.threads, accumulators, kernel.resident, int(kernel.shared_bytes), shared_limit)


def choose(
    candidates: Sequence[Sequence[int]], kernel: Callable[[Sequence[int]], GpuKernel], shared_limit: int
) -> list[tuple[int, ...]]:
    """Combinations of one of each of `candidates` that fit, those estimated fastest first, `STARTS` at most.

    The first is the default of a schedule: where nothing was tuned it is what runs. A search starts from all of them,
    so they differ in what weighs most, the output channels of a thread and turning. The last of `candidates` are
    releases, whose order of time hardly depends on the rest: they are chosen last.
    """
    *others, releases = candidates
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
    for values in itertools.product(*others, releases[:1]):
        each = kernel(values)
        if each.threads <= MAX_THREADS and not refused(each, shared_limit):
            kind, estimate = (values[0], each.turned), (each.time_us(), values)
            best[kind] = min(best.get(kind, estimate), estimate)

    def estimate_us(values: tuple[int, ...]) -> float:
        each = kernel(values)
        return math.inf if refused(each, shared_limit) else each.time_us()

    starts = [values for _, values in sorted(best.values())[:STARTS]]
    return [min(((*values[:-1], release) for release in releases), key=estimate_us) for values in starts]


def folded_space(
    name: str,
    variant: str,
    func: tirx.PrimFunc,
    candidates: Sequence[Sequence[int]],
    kernel: Callable[[Sequence[int]], GpuKernel],
    scheduler: Callable[[tuple[int, ...]], Callable[[Schedule], None]],
    shared_limit: int,
) -> Space | None:
    """The space of one structure, or None where no decisions fit.

    Of decisions, one of each of `candidates`, `kernel` gives the counts, and `scheduler` the schedule that samples them
    with these defaults.
    """
    starts = choose(candidates, kernel, shared_limit)
    if not starts:
        return None
    return Space(
        schedule=name,
        variant=variant,
        func=func,
        apply=scheduler(starts[0]),
        others=tuple(map(scheduler, starts[1:])),
        refuse=lambda sch: refused(kernel(decided(sch)), shared_limit),
        features=lambda sch: kernel(decided(sch)).features(),
        estimate_us=kernel(starts[0]).time_us(),
        estimate=lambda sch: kernel(decided(sch)).time_us(),
    )
