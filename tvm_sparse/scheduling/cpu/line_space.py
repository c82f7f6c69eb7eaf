"""Which tile, steps and tasks a kernel on whole cache lines (`line_kernel`) should have, and the space of them."""

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule

from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.conv.spec import MAX_ELEMENTS, ConvSpec
from tvm_sparse.scheduling.cpu.cost import Ranking, rounds
from tvm_sparse.scheduling.cpu.fit import LINES, SPARSE
from tvm_sparse.scheduling.cpu.interleaved_lines import InterleavedLineKernel, can_interleave
from tvm_sparse.scheduling.cpu.line_kernel import LineKernel
from tvm_sparse.scheduling.cpu.lines import Lines
from tvm_sparse.scheduling.cpu.shared_lines import SharedLineKernel
from tvm_sparse.scheduling.space import Choose, Decisions, NotApplicable, WrittenSpace, divisors
from tvm_sparse.target.cpu_info import CpuInfo

# Registers that hold no sums: of a weight, and of what is loaded ahead.
SPARE_REGISTERS = 3
# Filters of a task at least, unless there are fewer.
LEAST_FILTERS = 4
# Decisions that a search begins with.
STARTS = 3


# Filters that share their zeros, each number of them that lists may be for; others have lists of their own.
ALONE = (1,)


class Tiling(NamedTuple):
    """A tile, the filters of a list, the input channels of a step, and the filters of a task."""

    lines: Lines
    shared: int
    channels: int
    filters: int


def ranked(spec: ConvSpec, nnz: int, cpu: CpuInfo, threads: int, shared: tuple[int, ...] = ALONE) -> list[Tiling]:
    """All tilings for a weight of `nnz` non-zeros, most promising first."""
    return list(_ranking(spec, cpu, threads, shared).best(nnz))


def least_cycles(spec: ConvSpec, nnz: int, cpu: CpuInfo, shared: tuple[int, ...] = ALONE) -> float:
    """What the first of `ranked` takes one thread."""
    return _ranking(spec, cpu, 1, shared).least_cycles(nnz)


@lru_cache(maxsize=256)
def _ranking(spec: ConvSpec, cpu: CpuInfo, threads: int, shared: tuple[int, ...]) -> Ranking[Tiling]:
    """Of a convolution a few hundred tilings. Who prunes asks for many densities."""
    found = [each for count in shared for lines in tiles(spec, cpu, count) for each in _tilings(lines, count)]
    return Ranking.of(found, lambda nnz, tiling: cycles(nnz, tiling, threads))


def _tilings(lines: Lines, shared: int) -> Iterator[Tiling]:
    return (Tiling(lines, shared, *each) for each in product(*_values(lines.spec, shared).values()))


def _values(spec: ConvSpec, shared: int) -> dict[str, list[int]]:
    """What `channels` of a step and `filters` of a task may be."""
    least = max(min(spec.k, LEAST_FILTERS), shared)
    filters = [each for each in divisors(spec.k) if each >= least and each % shared == 0]
    return {"channels": divisors(spec.weight_shape[1]), "filters": filters}


def tiles(spec: ConvSpec, cpu: CpuInfo, shared: int = 1) -> list[Lines]:
    """Tiles whose sums fit the registers: rows that touch each other, or begin with a half or a whole vector.

    Where filters share a list, some vectors of any tile do, and these vectors and a weight have registers too.
    """
    if shared > 1:
        most = max(1, (cpu.registers - 1) // (shared + 1))
        ways = product(divisors(spec.out_h), sorted({most, max(1, most - 1), max(1, most // 2)}))
        return [Lines.of_rows(spec, cpu.lanes, rows, held) for rows, held in ways]
    widths = {-(-spec.out_w // step) * step for step in (1, max(1, cpu.lanes // 2), cpu.lanes)}
    found = [Lines(spec, cpu.lanes, rows, width) for rows in divisors(spec.out_h) for width in sorted(widths)]
    most = cpu.registers - SPARE_REGISTERS
    return [each for each in found if each.vectors <= most] or [Lines.of_row(spec, cpu.lanes, most)]


def cycles(nnz: int, tiling: Tiling, threads: int = 1) -> float:
    """Estimated cycles of a core, so many times what the busiest of `threads` takes; a straight line in `nnz`."""
    lines, shared, channels, filters = tiling
    spec, vectors = lines.spec, lines.vectors
    steps, blocks = spec.weight_shape[1] // channels, spec.k // filters
    tasks = spec.n * lines.tiles * blocks
    read_floats = lines.rows * lines.width if lines.is_direct else lines.channel
    beyond = max(0.0, 1 - LINES.step_bytes / (4 * channels * read_floats))
    # A task reads what its tile reads of all channels once more.
    read = LINES.read_cycles * spec.c * read_floats / lines.lanes
    held = lines.held or vectors
    parts = vectors // held
    # Where filters share a position it loads its vectors across lines, and broadcasts its weights.
    each = max(shared * held, 2 * held + shared) if lines.held else vectors
    position = each * LINES.product_cycles + held * LINES.miss_cycles * beyond + LINES.nonzero_cycles
    # The weights of a list are read from far for the first part of a tile.
    products = nnz / blocks / shared * (parts * position + (shared - 1) * LINES.nonzero_cycles)
    kept = 2 * LINES.sum_cycles * vectors if steps > 1 or lines.held else 0
    lists = filters * steps * (LINES.list_cycles * parts / shared + kept)
    packing = 0.0 if lines.is_direct else spec.c * _packing(lines)
    own = products + read + lists + filters * _runs(lines) * LINES.run_cycles + packing
    most = rounds(tasks, threads)
    if threads == 1:
        return most * own
    # A thread reads the non-zeros of its filters, and what others wrote of its tiles.
    rows = min(spec.h, (lines.rows - 1) * spec.stride[0] + (spec.r - 1) * spec.dilation[0] + 1)
    written = 4 * spec.c * rows * spec.w / lines.parts * -(-most // blocks)
    others = SPARSE.value_cycles * nnz * min(most, blocks) / blocks + SPARSE.shared_cycles_byte * written
    return (most * own + others) * threads


def _packing(lines: Lines) -> float:
    """Cycles to pack what a tile reads of a channel."""
    floats = lines.channel / lines.lanes * LINES.packed_cycles
    if lines.is_flat:
        return floats
    rows = len(lines.copies) * lines.copy_floats / lines.width
    return floats + rows * -(-lines.columns() // lines.lanes) * LINES.run_cycles


def _runs(lines: Lines) -> int:
    """Runs of output pixels of a tile."""
    if lines.held:
        return lines.rows * -(-lines.spec.out_w // lines.lanes)
    return len(list(lines.runs(lines.columns())))


def variant_of(lines: Lines, shared: int = 1) -> str:
    """What a space of a tile, with lists of `shared` filters, is called beside its schedule."""
    if shared > 1:
        return f"rows{lines.rows}x{lines.width}-tile{shared}x{lines.held}"
    return f"lines{lines.rows}x{lines.width}" + (f"-parts{lines.parts}" if lines.parts > 1 else "")


class LineSpace(WrittenSpace):
    """The space of one tile and lists of `shared` filters: steps over channels, and filters of a task.

    `interleaving`: how its kernels interleave their outputs; None: they do not.
    """

    interleaving: Interleaving | None = None

    def __init__(self, name: str, lines: Lines, nnz: int, threads: int, shared: int = 1):
        spec = lines.spec
        longest = spec.n * max(lines.tiles * spec.c * lines.channel, spec.k * spec.out_h * spec.out_w)
        if longest > MAX_ELEMENTS:
            raise NotApplicable(f"a buffer of {longest} floats exceeds 32-bit indices")
        super().__init__(name, variant_of(lines, shared))
        self.lines, self.nnz, self.threads, self.shared = lines, nnz, threads, shared

    @cached_property
    def ranked(self) -> list[Tiling]:
        """Its tilings, most promising first."""
        return sorted(_tilings(self.lines, self.shared), key=lambda each: cycles(self.nnz, each, self.threads))

    def interleaved(self, interleaving: Interleaving) -> "LineSpace | None":
        """The same whose kernels interleave their outputs, where they can."""
        if self.shared > 1 or not can_interleave(self.lines):
            return None
        found = copy(self)
        found.interleaving = interleaving
        return found

    def apply(self, sch: Schedule, choose: Choose) -> None:
        best = self.ranked[0] if choose.given is None else None
        for name, values in _values(self.lines.spec, self.shared).items():
            self.decide(sch, choose, name, values, values[0] if best is None else getattr(best, name))

    def starts(self) -> list[Decisions]:
        return [{"channels": each.channels, "filters": each.filters} for each in self.ranked[:STARTS]]

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        return self._kernel(decisions).written()

    def packed(self, weight: np.ndarray, decisions: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        return self._kernel(decisions).packed(weight)

    def _kernel(self, decisions: Mapping[str, Any]) -> LineKernel:
        kind = SharedLineKernel if self.shared > 1 else LineKernel
        kernel = kind(self.lines, self.nnz, decisions["channels"], decisions["filters"], shared=self.shared)
        return kernel if self.interleaving is None else InterleavedLineKernel.of(kernel, self.interleaving)
