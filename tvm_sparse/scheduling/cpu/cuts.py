"""How a convolution's work is cut for the threads of a CPU.

Threads take tasks one after the other (`codegen.cpu.shared_tasks`), so a kernel takes as long as the thread that takes
the last one (`rounds`). A thread that computes some rows of all filters reads all of the weight, one that computes some
filters of all rows reads all of the input, which other threads have just written. Constants are of kernels timed with 4
and 16 threads (docs/lab/threads.md, "How do CPU kernels use many threads?").
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm.target import Target

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

# How long packing a row takes, in the time of its multiply-adds, and how much longer where all is packed first and so
# leaves the caches.
PACKING, PACKED_FIRST = 0.25, 0.15
# Cycles of a multiply-add of vectors, of a byte of code that other layers displaced from the caches, and of a byte that
# another thread wrote. A non-zero is so many bytes of code.
PRODUCT_CYCLES, CODE_CYCLES, SHARED_CYCLES, CODE_BYTES = 0.7, 0.3, 0.25, 8
# How many times as much as it writes a layer reads whose threads have rows each.
READ_MORE = 2


def rounds(tasks: int, threads: int) -> int:
    """Tasks of the busiest of threads that are equally fast."""
    return -(-tasks // threads)


def rounds_of_any(tasks: int, threads: int) -> float:
    """How many tasks several threads take as long as: halfway between equally fast ones and others.

    Of others the last task begins as the rest end. 16 of a virtual machine take 300 us for 512x512x1x1 on 14x14 in 16
    tasks, and 140 in 64. Folded kernels, which read their code for each task, are not cut so: ResNet-50 with 90% zeros
    took 1.1 times as long.
    """
    return tasks if threads == 1 else (rounds(tasks, threads) + tasks / threads + 1) / 2


def rows_packed_again(spec: ConvSpec) -> float:
    """Output rows' worth of input that two neighbouring blocks of rows both pack."""
    return max(0, (spec.r - 1) * spec.dilation[0] + 1 - spec.stride[0]) / spec.stride[0]


def shared_cycles(spec: ConvSpec, threads: int) -> float:
    """Cycles in which all threads but one read all of the input, beside what they read of it anyway."""
    return SHARED_CYCLES * 4 * spec.n * spec.c * spec.h * spec.w * (threads - 1)


@dataclass(frozen=True)
class Threads:
    """The threads of a folded or dense kernel of rows.

    Parameters
    ----------
    count
        How many there are.
    nnz
        Non-zeros that are code; of a weight that is data, its elements.
    lanes
        Floats of a vector register.
    """

    count: int
    nnz: int
    lanes: int

    @classmethod
    def of(cls, target: Target, nnz: int) -> "Threads":
        """Those that kernels for `target` run with."""
        return cls(thread_count(target), nnz, CpuInfo.of(target).lanes)

    def groups_of_task(self, spec: ConvSpec, rows: int, most: int, packs: bool, tiles: int) -> int:
        """Groups of `rows` output rows of a task, `most` at most, such that threads end together.

        `tiles` of filters are so many tasks of the same rows; where a task `packs` what it reads, they are one.
        """

        def key(groups: int) -> tuple[float, int]:
            return self._time(spec, rows, groups, packs, tiles), -groups

        return min(divisors(spec.out_h // rows, most), key=key)

    def filters_of_task(self, spec: ConvSpec, groups: int, filters: Sequence[int], most: int) -> int:
        """Of `filters` those of a task, `most` at most, such that threads end together.

        Each of so many `groups` of rows is so many tasks.
        """

        def key(each: int) -> tuple[int, int]:
            return rounds(spec.n * groups * (spec.k // each), self.count) * each, -each

        return min((each for each in filters if each <= most), key=key)

    def _time(self, spec: ConvSpec, rows: int, groups: int, packs: bool, tiles: int = 1) -> float:
        """Of the busiest thread, in output rows of a task's filters."""
        tasks = spec.n * (spec.out_h // rows // groups) * (1 if packs else tiles)
        packing = PACKING * (groups * rows + rows_packed_again(spec)) if packs else 0.0
        return rounds(tasks, self.count) * (groups * rows + packing)

    def packing_cost(self, spec: ConvSpec, rows: int) -> float:
        """How long threads take that pack blocks of groups of `rows` rows, in the time of the multiply-adds."""
        groups = self.groups_of_task(spec, rows, spec.out_h // rows, packs=True, tiles=1)
        return self._time(spec, rows, groups, packs=True) * self.count / (spec.n * spec.out_h)

    def imbalance(self, spec: ConvSpec, rows: int, packs: bool) -> float:
        """How many times as long as one thread's share of the work they take with such blocks."""
        if packs:
            return self.packing_cost(spec, rows) / replace(self, count=1).packing_cost(spec, rows)
        groups = self.groups_of_task(spec, rows, spec.out_h // rows, packs, tiles=1)
        return self._time(spec, rows, groups, packs) * self.count / (spec.n * spec.out_h)

    def imbalance_of_tasks(self, tasks: int) -> float:
        """The same of so many tasks that take equally long."""
        return rounds(tasks, self.count) * self.count / tasks

    def packs_by_rows(self, spec: ConvSpec) -> bool:
        """Whether each rather packs the rows that it computes than that all pack first and have filters each.

        The latter is for maps of few pixels, whose code is longer than their input.
        """
        best = min(self.packing_cost(spec, rows) for rows in divisors(spec.out_h))
        by_filters = 1 + PACKING + PACKED_FIRST + self._shared(spec)
        return self.count == 1 or best + self._by_rows(spec, self.count) <= by_filters

    def has_rows_outside(self, spec: ConvSpec, blocks: int) -> bool:
        """Whether so many blocks of rows come before the filters, where nothing is packed in between.

        Only where much more is read than written: a thread's rows are as many pieces of the output as there are
        filters, its filters are one.
        """
        read, written = spec.c * spec.h * spec.w, spec.k * spec.out_h * spec.out_w * (1 + spec.residual)
        return read >= READ_MORE * written and self._by_rows(spec, blocks) < self._shared(spec)

    def _by_rows(self, spec: ConvSpec, blocks: int) -> float:
        """How long they read, in the time of the multiply-adds, with so many blocks of rows outside."""
        together = min(1.0, blocks / self.count)
        return together * self._code(spec) + self._shared(spec) / min(blocks, self.count)

    def _code(self, spec: ConvSpec) -> float:
        """That each reads all code."""
        return CODE_CYCLES * CODE_BYTES * (self.count - 1) / (PRODUCT_CYCLES * self._vectors(spec))

    def _shared(self, spec: ConvSpec) -> float:
        """That each reads all of the input."""
        return shared_cycles(spec, self.count) / (PRODUCT_CYCLES * max(1, self.nnz) * self._vectors(spec))

    def _vectors(self, spec: ConvSpec) -> float:
        return spec.n * spec.out_h * spec.out_w / self.lanes
