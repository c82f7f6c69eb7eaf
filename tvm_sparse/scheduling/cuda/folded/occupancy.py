"""What fits a multiprocessor: shared memory and registers of folded kernels, judged before they are built."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import DependentLaunch, Order
from tvm_sparse.scheduling.cuda.folded.cost_model import features, first_code_us, time_us
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
    limits = _limits(kernel, gpu)
    return next((text.format(needed, most, kernel) for text, needed, most in limits if needed > most), "")


def _limits(kernel: KernelCounts, gpu: GpuInfo) -> list[tuple[str, Any, Any]]:
    """What a kernel needs, or several do, and how much there may be at most, each in a sentence."""
    tiles, later = kernel.tiles * kernel.splits, np.maximum(0, kernel.k_tiles - kernel.pipeline.stages + 1)
    registers = np.maximum(kernel.filters * kernel.pixels + OTHER_REGISTERS, MIN_REGISTERS)
    blocks = kernel.pipeline.resident
    return [
        (
            "{:.0f} k-tiles and copies of all tiles and parts, at most {:.0f}",
            tiles * (kernel.k_tiles + later * kernel.copies),
            np.maximum(MAX_COPIES, tiles * kernel.multiply_adds / SHARE),
        ),
        ("{} addresses of a thread's copies in one k-tile, at most {}", kernel.addresses, MAX_ADDRESSES),
        (
            "{0} registers a thread are needed and {1} there with {2.pipeline.resident} blocks of {2.threads} threads",
            registers,
            gpu.launch_registers(kernel.threads, blocks),
        ),
        (
            "{2.pipeline.resident} blocks need {0:.0f} bytes of shared memory and there are {1}",
            blocks * (kernel.shared_bytes // 1 + _RESERVED),
            gpu.shared_bytes,
        ),
    ]


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
        return [self._with_launch(values, launches) for values in self._fastest(others, launches[0])]

    def _with_launch(self, values: tuple[Any, ...], launches: Sequence[int]) -> tuple[Any, ...]:
        """The decisions `values` with the best of `launches`."""
        each = [(*values[:-1], launch) for launch in launches]
        times_us = self._times_us([self.counts(values)], [self.parted(some)[1] for some in each])
        return each[int(times_us.argmin())]

    def _fastest(self, others: Sequence[Sequence[Any]], launch: int) -> list[tuple[Any, ...]]:
        """Of each number of output channels of a thread and order the fastest, `STARTS` at most.

        With one candidate of each of the `others`, and with `launch`.
        """
        cut = self._tile_decisions
        orders = sorted(itertools.product(*others[cut:], (launch,)))
        pipelines = [self.parted((*(0,) * cut, *values))[1] for values in orders]
        counted = [(tile, self.tile_counts(tile, pipelines[0])) for tile in sorted(itertools.product(*others[:cut]))]
        tiles = [
            (tile, each)
            for tile, each in counted
            if each.threads <= MAX_THREADS and each.code_bytes <= self.most_code_bytes
        ]
        if not tiles:
            return []
        times_us = self._times_us([each for _, each in tiles], pipelines)
        best = []
        for filters, order in itertools.product({tile[0] for tile, _ in tiles}, {each.order for each in pipelines}):
            rows = [index for index, (tile, _) in enumerate(tiles) if tile[0] == filters]
            columns = [index for index, each in enumerate(pipelines) if each.order == order]
            some = times_us[np.ix_(rows, columns)]
            row, column = np.unravel_index(some.argmin(), some.shape)
            if some[row, column] < math.inf:
                best.append((some[row, column], (*tiles[rows[row]][0], *orders[columns[column]])))
        return [values for _, values in sorted(best)[:STARTS]]

    def _times_us(self, tiles: Sequence[KernelCounts], pipelines: Sequence[Pipeline]) -> np.ndarray:
        """Estimated times of all tiles, rows, with all pipelines, columns; infinite where they are refused."""
        every = KernelCounts.together(tiles, pipelines)
        fits = reduce(np.logical_and, (needed <= most for _, needed, most in _limits(every, self.gpu)))
        return np.where(fits, time_us(every, self.gpu), math.inf)

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
        return float(time_us(self.counts_of(sch), self.gpu))

    @property
    def estimate_us(self) -> float | None:
        return float(time_us(self.counts(self.defaults[0]), self.gpu)) if self.defaults else None

    @property
    def starts_us(self) -> list[float | None]:
        counts = map(self.counts, self.defaults)
        return [float(time_us(each, self.gpu) + first_code_us(each, self.gpu)) for each in counts]
