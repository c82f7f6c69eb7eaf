"""How a convolution's work is cut for the threads of a CPU.

Threads take tasks one after the other (`codegen.cpu.shared_tasks`), so a kernel takes as long as the thread that takes
the last one (`rounds`). A thread that computes some rows of all filters reads all of the weight, one that computes some
filters of all rows reads all of the input, which other threads have just written.
"""

from dataclasses import dataclass, replace

from tvm.target import Target

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.cost import rounds, rows_packed_again
from tvm_sparse.scheduling.cpu.fit import SPARSE
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count


def shared_cycles(spec: ConvSpec, threads: int) -> float:
    """Cycles in which all threads but one read all of the input, beside what they read of it anyway."""
    return SPARSE.shared_cycles_byte * 4 * spec.n * spec.c * spec.h * spec.w * (threads - 1)


@dataclass(frozen=True)
class Threads:
    """The threads of a folded or dense kernel of rows.

    * `count`: how many there are.
    * `nnz`: non-zeros that are code; of a weight that is data, its elements.
    * `lanes`: floats of a vector register.
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

    def _time(self, spec: ConvSpec, rows: int, groups: int, packs: bool, tiles: int = 1) -> float:
        """Of the busiest thread, in output rows of a task's filters."""
        tasks = spec.n * (spec.out_h // rows // groups) * (1 if packs else tiles)
        packing = SPARSE.packing * (groups * rows + rows_packed_again(spec)) if packs else 0.0
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
        by_filters = 1 + SPARSE.packing + SPARSE.packed_first + self._shared(spec)
        return self.count == 1 or best + self._by_rows(spec, self.count) <= by_filters

    def has_rows_outside(self, spec: ConvSpec, blocks: int) -> bool:
        """Whether so many blocks of rows come before the filters, where nothing is packed in between.

        Only where much more is read than written: a thread's rows are as many pieces of the output as there are
        filters, its filters are one.
        """
        read, written = spec.c * spec.h * spec.w, spec.k * spec.out_h * spec.out_w * (1 + spec.residual)
        return read >= SPARSE.read_more * written and self._by_rows(spec, blocks) < self._shared(spec)

    def _by_rows(self, spec: ConvSpec, blocks: int) -> float:
        """How long they read, in the time of the multiply-adds, with so many blocks of rows outside."""
        together = min(1.0, blocks / self.count)
        return together * self._code(spec) + self._shared(spec) / min(blocks, self.count)

    def _code(self, spec: ConvSpec) -> float:
        """That each reads all code."""
        return (
            SPARSE.code_cycles_byte
            * SPARSE.code_bytes
            * (self.count - 1)
            / (SPARSE.product_cycles * self._vectors(spec))
        )

    def _shared(self, spec: ConvSpec) -> float:
        """That each reads all of the input."""
        return shared_cycles(spec, self.count) / (SPARSE.product_cycles * max(1, self.nnz) * self._vectors(spec))

    def _vectors(self, spec: ConvSpec) -> float:
        return spec.n * spec.out_h * spec.out_w / self.lanes
