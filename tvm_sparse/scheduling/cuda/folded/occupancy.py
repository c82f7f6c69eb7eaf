"""What fits a multiprocessor: shared memory and registers of folded kernels, judged before they are built."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import DependentLaunch, Order
from tvm_sparse.scheduling.cuda.folded.cost_model import features, first_code_us, least_us, time_us
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KernelCounts, Pipeline
from tvm_sparse.scheduling.cuda.folded.thread_layout import MAX_ADDRESSES
from tvm_sparse.scheduling.decision_kinds import OneOf, Split
from tvm_sparse.scheduling.space import Choose, Decisions, HandMadeSpace, MakeFunc, sampled
from tvm_sparse.target.gpu import GpuInfo, gpu_info

# Threads of a block at most.
MAX_THREADS = 768
# Accumulators of a thread at most; with twice as many there are no registers for anything else.
ACCUMULATORS = 128
# Registers that a thread needs beside its accumulators: fewer than this and accumulators spill.
OTHER_REGISTERS = 14
# Registers that addresses and copies take in any kernel.
MIN_REGISTERS = 48
# Pipeline stages. Small k-tiles need six: with five on their way, 10 input channels, three blocks of 16x16 pixels took
# 334 us where three on their way took 341 (operator 10 at batch 64).
DEPTHS = [3, 4, 6]
# The decisions that a `Pipeline` is made of, in its order.
PIPELINE = ("pipeline_stages", "order", "blocks_per_sm", "dependent_launch")
# Thread blocks that a multiprocessor should hold at once.
BLOCKS = [1, 2, 3, 4]
# Decisions of a space that a search begins with.
STARTS = 3
# K-tiles and copies between them in the code of all tiles and parts, at most: each costs milliseconds to write and to
# compile. Large weights may have one for each `SHARE` multiply-adds, as these take longer.
MAX_COPIES, SHARE = 4096, 8
# What the driver and kernels of several translation units (`separate_compilation`) keep for themselves of each
# block's shared memory, bytes.
_RESERVED = GpuInfo.reserved_bytes + 64


def blocks_default(threads: int, accumulators: int) -> int:
    """Thread blocks that a multiprocessor should hold at once: three at most, as registers allow without spills."""
    # Of the fullest of a multiprocessor's four parts.
    registers = -(-threads // 128) * 32 * (accumulators + OTHER_REGISTERS)
    return min(max(GpuInfo.quarter_registers // registers, 1), 3)


def refused(kernel: KernelCounts, gpu: GpuInfo) -> str:
    """Why a kernel is not worth building, or ""."""
    tiles, later = kernel.tiles * kernel.splits, max(0, kernel.k_tiles - kernel.pipeline.stages + 1)
    copies = tiles * (kernel.k_tiles + later * kernel.copies)
    most = max(MAX_COPIES, tiles * kernel.multiply_adds / SHARE)
    if copies > most:
        return f"{copies} k-tiles and copies of all tiles and parts, at most {most:.0f}"
    if kernel.addresses > MAX_ADDRESSES:
        return f"{kernel.addresses} addresses of a thread's copies in one k-tile, at most {MAX_ADDRESSES}"
    threads, blocks, shared_bytes = kernel.threads, kernel.pipeline.resident, int(kernel.shared_bytes)
    available = gpu.launch_registers(threads, blocks)
    needed = max(kernel.filters * kernel.pixels + OTHER_REGISTERS, MIN_REGISTERS)
    if needed > available:
        return f"{needed} registers a thread are needed and {available} there with {blocks} blocks of {threads} threads"
    if blocks * (shared_bytes + _RESERVED) > gpu.shared_bytes:
        return f"{blocks} blocks need {blocks * shared_bytes} bytes of shared memory and there are {gpu.shared_bytes}"
    return ""


@dataclass(frozen=True)
class Fold:
    """What a folded space knows beyond its structure: the weight's pattern and the GPU that is to run the kernel."""

    pattern: SparsityPattern
    gpu: GpuInfo

    @classmethod
    def on(cls, target: Target, pattern: SparsityPattern) -> "Fold":
        """On the card that `target` means."""
        return cls(pattern, gpu_info(target))

    @property
    def pipelines(self) -> dict[str, Sequence[int]]:
        """Candidates of each decision of a `Pipeline`."""
        launches = list(DependentLaunch) if self.gpu.has_dependent_launch else [DependentLaunch.AT_EXIT]
        return dict(zip(PIPELINE, (DEPTHS, list(Order), BLOCKS, launches), strict=True))


class FoldedCudaSpace(HandMadeSpace):
    """The space of one structure of folded kernels.

    * `candidates`: of each decision by name; the first are output channels of a thread, the last `DependentLaunch`.
    """

    has_features = True
    # Code of a tile that defaults may have, bytes.
    most_code_bytes = math.inf

    def __init__(
        self, name: str, variant: str, make_func: MakeFunc, candidates: dict[str, Sequence[int]], folding: Fold
    ):
        super().__init__(name, variant, make_func)
        self.candidates, self.folding, self.gpu = candidates, folding, folding.gpu
        self._tile_decisions = len([each for each in candidates if each not in PIPELINE])

    @abstractmethod
    def tile_counts(self, tile: Sequence[Any], pipeline: Pipeline) -> KernelCounts:
        """Those of the kernel that the decisions of a `tile`, one of each of the first `candidates`, make."""

    def counts(self, decisions: Sequence[Any]) -> KernelCounts:
        """Those of the kernel that `decisions`, one of each of the `candidates`, make."""
        return self.tile_counts(*self.parted(decisions))

    def parted(self, decisions: Sequence[Any]) -> tuple[tuple[Any, ...], Pipeline]:
        """Decisions about the tile, and the pipeline that the others are; straight where `order` is not among them."""
        by_name = dict(zip(self.candidates, decisions, strict=True))
        pipeline = Pipeline(*(by_name.get(name, Order.STRAIGHT) for name in PIPELINE))
        return tuple(decisions[: self._tile_decisions]), pipeline

    @abstractmethod
    def schedule_with(self, sch: Schedule, decisions: Sequence[Any]) -> None:
        """Schedule with sampled `decisions`, one of each of the `candidates`."""

    def apply(self, sch: Schedule, choose: Choose) -> None:
        # What is given needs no default, and to find it takes long.
        default = self._default() if choose.given is None else [0] * len(self.candidates)
        each = zip(self.candidates.items(), default, strict=True)
        self.schedule_with(sch, [choose.one_of(name, values, value) for (name, values), value in each])

    @cached_property
    def choices(self) -> dict[str, OneOf | Split]:
        return {name: OneOf(tuple(sorted(set(values)))) for name, values in self.candidates.items()}

    def starts(self) -> list[Decisions]:
        items = self.choices.items()
        return [
            {name: choice.to_json(value) for (name, choice), value in zip(items, each, strict=True)}
            for each in self.defaults
        ]

    @cached_property
    def defaults(self) -> list[tuple[Any, ...]]:
        """Decisions that fit, those estimated fastest first, `STARTS` at most.

        The first is the default of a schedule: where nothing was tuned it is what runs. A search starts from all of
        them, so they differ in what weighs most, the output channels of a thread and the order. When the next kernel
        may start hardly depends on the rest, so it is chosen last.
        """
        *others, launches = self.candidates.values()

        def estimate_us(values: tuple[Any, ...]) -> float:
            each = self.counts(values)
            return math.inf if refused(each, self.gpu) else time_us(each, self.gpu)

        starts = self._fastest(others, launches[0])
        return [min(((*values[:-1], launch) for launch in launches), key=estimate_us) for values in starts]

    def _fastest(self, others: Sequence[Sequence[Any]], launch: int) -> list[tuple[Any, ...]]:
        """Of each number of output channels of a thread and order the fastest, `STARTS` at most.

        With one candidate of each of the `others`, and with `launch`.
        """
        cut = self._tile_decisions
        by_order: dict[int, list[tuple[tuple[Any, ...], Pipeline]]] = {}
        for values in itertools.product(*others[cut:], (launch,)):
            _, pipeline = self.parted((*(0,) * cut, *values))
            by_order.setdefault(pipeline.order, []).append((values, pipeline))
        deepest = {order: max(each for _, each in some) for order, some in by_order.items()}
        least = []
        for tile in itertools.product(*others[:cut]):
            counted = self.tile_counts(tile, next(iter(deepest.values())))
            if counted.threads <= MAX_THREADS and counted.code_bytes <= self.most_code_bytes:
                least += [
                    (least_us(counted.with_pipeline(pipeline), self.gpu), tile, order, counted)
                    for order, pipeline in deepest.items()
                ]
        best: dict[tuple[int, int], tuple[float, tuple[Any, ...]]] = {}
        for least_time_us, tile, order, counted in sorted(least, key=lambda each: each[:3]):
            kind = tile[0], order
            # No kernel from here on can be among those that are kept.
            if len(best) >= STARTS and least_time_us > sorted(best.values())[STARTS - 1][0]:
                break
            if kind in best and least_time_us > best[kind][0]:
                continue
            for values, pipeline in by_order[order]:
                each = counted.with_pipeline(pipeline)
                if not refused(each, self.gpu):
                    estimate = time_us(each, self.gpu), (*tile, *values)
                    best[kind] = min(best.get(kind, estimate), estimate)
        return [values for _, values in sorted(best.values())[:STARTS]]

    def _default(self) -> Sequence[int]:
        if not self.defaults:
            raise BuildError(f"schedule {self.name}", "no decisions fit a multiprocessor", hint="take another schedule")
        return self.defaults[0]

    def counts_of(self, sch: Schedule) -> KernelCounts:
        """What an estimate of a schedule is made from."""
        return self.counts(sampled(sch))

    def obstacle_of(self, sch: Schedule) -> str:
        return refused(self.counts_of(sch), self.gpu)

    def features(self, sch: Schedule) -> Sequence[float]:
        return features(self.counts_of(sch), self.gpu)

    def estimate(self, sch: Schedule) -> float | None:
        return time_us(self.counts_of(sch), self.gpu)

    @property
    def estimate_us(self) -> float | None:
        return time_us(self.counts(self.defaults[0]), self.gpu) if self.defaults else None

    @property
    def starts_us(self) -> list[float | None]:
        counts = map(self.counts, self.defaults)
        return [time_us(each, self.gpu) + first_code_us(each, self.gpu) for each in counts]
