"""A kernel on whole cache lines that interleaves what it computes: a transposed convolution in one pass.

Filters of a channel's phases are one behind the other. When a task has the outputs of some channels, it writes them as
whole vectors; until then they stay in a cache.
"""

from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.scheduling.cpu.line_kernel import LineKernel, Task
from tvm_sparse.scheduling.cpu.lines import Lines
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.scheduling.tir_writing import divided

# Channels whose outputs are kept at least: 64->64 2x2, stride 2, on 40x40 with 90% zeros takes 171 us with four, which
# fit a level-1 cache, and 210 with all 64 (AVX-512).
LEAST_CHANNELS = 4


def can_interleave(lines: Lines) -> bool:
    """Whether tasks can have whole rows of all phases."""
    spec = lines.spec
    return lines.parts == 1 and spec.groups == 1 and spec.dtype == FLOAT32 and not spec.residual


@dataclass(frozen=True)
class InterleavedLineKernel(LineKernel):
    """One that `can_interleave`; y is (N, K / phases, H, W). A task has `together` times its `filters` in turn."""

    interleaving: Interleaving
    together: int

    @classmethod
    def of(cls, kernel: LineKernel, interleaving: Interleaving) -> "InterleavedLineKernel":
        """`kernel` with all phases of a channel in a task."""
        spec, phases = kernel.lines.spec, interleaving.phases
        whole = [each for each in divisors(spec.k) if each % phases == 0]
        task = min(each for each in whole if each >= kernel.filters)
        few = min((each for each in whole if task % each == 0 and each >= LEAST_CHANNELS * phases), default=task)
        # Sums of several steps are kept of all filters.
        filters = few if kernel.steps == 1 else task
        return cls(kernel.lines, kernel.nnz, kernel.channels, filters, interleaving, task // filters)

    @property
    def tasks(self) -> int:
        return self.blocks // self.together

    @property
    def keeps_sums(self) -> bool:
        return True

    @property
    def kept_floats(self) -> int:
        # What is read of the last row may end beyond its last vector.
        return super().kept_floats + 2 * self.lines.lanes

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.interleaving.shape(self.lines.spec.n, self.lines.spec.k)

    def packed(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        return super().packed(self.interleaving.by_channel(weight))

    def _write_end(self, task: Task, which: tirx.Expr) -> None:
        assert task.sums is not None, "outputs wait for those of the other phases"
        spec, phases = self.lines.spec, self.interleaving.phases
        channel, phase = divided(task.block * self.filters + which, phases)
        at = (task.at[0], phase * (spec.k // phases) + channel, 0, 0)
        self._each(lambda p: T.buffer_store(task.sums, epilogue(spec, task.arguments, task.acc[p], at), [which, p]))

    def _write_lists(self, task: Task, step: tirx.Expr) -> None:
        with T.serial(self.together) as part:
            own = replace(task, block=task.block * self.together + part)
            super()._write_lists(own, step)
            with T.If(step == self.steps - 1), T.Then():
                self._write_rows(own)

    def _write_rows(self, task: Task) -> None:
        """Write the rows of the channels of a block."""
        image, tile = task.at
        lines, (down, right), phases = self.lines, self.interleaving.stride, self.interleaving.phases
        with T.serial(self.filters // phases) as channel, T.serial(lines.rows) as row:
            for phase in range(down):
                first = channel * phases + phase * right
                place = (tile * lines.rows + row) * down + phase - self.interleaving.shift[0]
                with T.If(tirx.all(place >= 0, place < self.interleaving.outputs[0])), T.Then():
                    k = task.block * (self.filters // phases) + channel
                    to = (image, k, place)
                    self._write_row(task.arguments["y"], to, task.sums, first, row * lines.width)

    def _write_row(
        self, y: tirx.Var, to: tuple[tirx.Expr, ...], sums: tirx.Var, first: tirx.Expr, row: tirx.Expr
    ) -> None:
        """Write a row of vectors that have an element of each phase in turn."""
        lanes, right, width = self.lines.lanes, self.interleaving.stride[1], self.interleaving.outputs[1]
        for begin in range(0, width, lanes * right):
            loads = []
            for place in range(right):
                number, phase = divmod(place + self.interleaving.shift[1], right)
                column = row + begin // right + number
                loads.append(tirx.BufferLoad(sums, [first + phase, tirx.Ramp(column, 1, lanes)]))
            count = min(lanes * right, width - begin)
            mixed = tirx.Shuffle(loads, [lane % right * lanes + lane // right for lane in range(count)])
            T.buffer_store(y, mixed, [*to, tirx.Ramp(begin, 1, count) if count > 1 else begin])
