"""A kernel on rows of floats whose filters share their zeros: a list of positions for several filters.

A position loads its pixels once for all filters of the list, whose sums are in registers for some vectors of the tile
at a time. So loads are few, and need not be of whole cache lines: the input is packed once, as it lies, however many
taps there are.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue
from tvm_sparse.scheduling.cpu.line_kernel import ZERO, LineKernel, Task
from tvm_sparse.scheduling.tir_writing import either


@dataclass(frozen=True)
class SharedLineKernel(LineKernel):
    """One of lists for `shared` filters, on `lines` of which registers hold some vectors."""

    @property
    def keeps_sums(self) -> bool:
        return True

    @property
    def kept_filters(self) -> int:
        return self.filters if self.steps > 1 else self.shared

    @property
    def held_floats(self) -> int:
        return self.shared * self.lines.held * self.lines.lanes

    def _write_list(self, task: Task, step: tirx.Expr, position: tirx.Expr) -> None:
        order, which = task.arguments["order"], (task.block * self.steps + step) * self.lists + position
        first = order[which] * self.shared if self.steps > 1 else 0
        with T.serial(self.lines.vectors // self.lines.held) as part:
            self._write_part(task, which, first, part * (self.lines.held * self.lines.lanes))

        def end() -> None:
            with T.serial(self.shared) as f:
                k = task.block * self.filters + order[which] * self.shared + f
                self._write_rows(task, first + f, k)

        either(step == self.steps - 1, end) if self.steps > 1 else end()

    def _write_part(self, task: Task, which: tirx.Expr, row: tirx.Expr, begin: tirx.Expr) -> None:
        """Multiply a list by some vectors of the tile, whose sums are rows of those that are kept."""
        acc, sums = task.acc, task.sums
        assert sums is not None, "they are kept"
        values, places, ends = (task.arguments[name] for name in ("values", "places", "ends"))

        def each(write: Callable[[int, tirx.Expr, tirx.Expr], None]) -> None:
            """`write` each vector: its filter, where it lies in `acc`, and its pixels."""
            for f in range(self.shared):
                for vector in range(self.lines.held):
                    with T.vectorized(self.lines.lanes) as lane:
                        pixel = vector * self.lines.lanes + lane
                        write(f, f * self.lines.held * self.lines.lanes + pixel, begin + pixel)

        each(lambda f, to, p: T.buffer_store(acc, sums[row + f, p] if self.steps > 1 else ZERO, [to]))
        with T.serial(ends[which], ends[which + 1]) as e:

            def product(f: int, pixel: tirx.Expr) -> tirx.Expr:
                return values[e * self.shared + f] * self._read(task, places[e] + pixel)

            each(lambda f, to, p: T.buffer_store(acc, acc[to] + product(f, p), [to]))
        each(lambda f, to, p: T.buffer_store(sums, acc[to], [row + f, p]))

    def _write_rows(self, task: Task, kept: tirx.Expr, k: tirx.Expr) -> None:
        """Write a filter's output pixels of the tile, of those sums that are kept."""
        (image, tile), lines, spec, sums = task.at, self.lines, self.lines.spec, task.sums
        assert sums is not None, "they are kept"
        with T.serial(lines.rows) as row:
            for begin, count in self._runs(spec.out_w):
                with T.vectorized(count) as lane:
                    index = [image, k, tile * lines.rows + row, begin + lane]
                    value = sums[kept, row * lines.width + begin + lane]
                    T.buffer_store(task.arguments["y"], epilogue(spec, task.arguments, value, index), index)
