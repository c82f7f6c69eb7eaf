"""Escort's direct sparse convolution on whole cache lines (`lines`): weights as data, each load a whole vector.

Of a tile, in steps over input channels that the level-1 cache holds, each filter's list of non-zeros is multiplied: a
weight is broadcast, and a vector of pixels at its place is loaded for each vector of the tile, whose sums are in
registers. Between steps sums are kept in memory; the last one stores what comes of them. In a step filters come in the
order of their lists' lengths, so that the end of a list is predicted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue, widened
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.scheduling.cpu.lines import Copy, Lines
from tvm_sparse.scheduling.tir_writing import divided, either, every_second, new_buffer, whole, written_function

ZERO = tirx.const(0.0, FLOAT32)

Arguments = dict[str, tirx.Var]
# An image, and a tile of it.
At = tuple[tirx.Expr, tirx.Expr]


@dataclass(frozen=True)
class Task:
    """What a task reads and writes: the filters of a `block`, on a tile, and buffers of its own.

    * `acc`: the sums of a list.
    * `sums`: those of all filters of the block, where it `keeps_sums`.
    * `packed`: what the tile reads in a step; None where that is read where it lies.
    """

    arguments: Arguments
    at: At
    block: tirx.Expr
    acc: tirx.Var
    sums: tirx.Var | None
    packed: tirx.Var | None


@dataclass(frozen=True)
class LineKernel:
    """A kernel of `nnz` non-zeros, with steps of `channels` of a group, and tasks of so many `filters`.

    Each step of a task packs what it reads, which then is in the level-1 cache. Where all is packed first, threads read
    from each other's caches, and there are several copies of each pixel.
    """

    lines: Lines
    nnz: int
    channels: int
    filters: int
    # Filters of a list, which have their zeros at the same positions (`shared_lines`).
    shared: int = field(default=1, kw_only=True)

    @property
    def lists(self) -> int:
        """Of a task in a step."""
        return self.filters // self.shared

    @property
    def steps(self) -> int:
        """Steps over the channels of a group."""
        return self.lines.spec.weight_shape[1] // self.channels

    @property
    def keeps_sums(self) -> bool:
        """Whether a task has its filters' sums in memory."""
        return self.steps > 1

    @property
    def kept_floats(self) -> int:
        """Of a filter."""
        return self.lines.vectors * self.lines.lanes

    @property
    def kept_filters(self) -> int:
        """Filters whose sums are in memory at a time."""
        return self.filters

    @property
    def held_floats(self) -> int:
        """Sums in registers."""
        return self.lines.vectors * self.lines.lanes

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of what is written."""
        return self.lines.spec.output_shape

    @property
    def blocks(self) -> int:
        """So many times `filters` there are."""
        return self.lines.spec.k // self.filters

    @property
    def tasks(self) -> int:
        """Those that share a tile."""
        return self.blocks

    def packed(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """A weight (K, C / groups, R, S) as values, their places, list ends and, list by list, lists of a task.

        Values are float32; those of an int32 weight, which has fours of bytes, stay what they are.
        """
        spec, steps = self.lines.spec, self.steps
        row, c, r, s = np.nonzero(weight[:: self.shared])
        values = weight.reshape(-1, self.shared, *weight.shape[1:])[row, :, c, r, s]
        group, channels = row * self.shared // (spec.k // spec.groups), spec.weight_shape[1]
        slot = group * channels + c if self.lines.is_direct else group * self.channels + c % self.channels
        places = slot * self.lines.channel + self.lines.places()[r, s]
        task_step = row // self.lists * steps + c // self.channels
        lengths = np.zeros((self.blocks * steps, self.lists), np.int64)
        np.add.at(lengths, (task_step, row % self.lists), 1)
        order = np.argsort(lengths, axis=1, kind="stable")
        rank = np.argsort(order, axis=1, kind="stable")
        by_list = np.lexsort((places, task_step * self.lists + rank[task_step, row % self.lists]))
        ends = np.cumsum([0, *np.take_along_axis(lengths, order, 1).ravel()])
        # TVM's buffers have an element at least.
        values, places = (np.pad(each[by_list].ravel(), (0, max(0, 1 - row.size))) for each in (values, places))
        kind = np.int32 if weight.dtype == np.int32 else np.float32
        return values.astype(kind), *(each.astype(np.int32).ravel() for each in (places, ends, order))

    def written(self) -> tirx.PrimFunc:
        """The function with arguments x, the arrays of `packed`, [bias], [residual], y."""
        lists = self.blocks * self.steps * self.lists
        shapes = {
            "values": ((max(1, self.nnz),), FLOAT32),
            "places": ((max(1, self.nnz // self.shared),), "int32"),
            "ends": ((lists + 1,), "int32"),
            "order": ((lists,), "int32"),
        }
        return written_function(self.lines.spec, shapes, self._write, self.output_shape)

    def _write(self, arguments: Arguments) -> None:
        lines, spec = self.lines, self.lines.spec
        with T.parallel(spec.n * lines.tiles * self.tasks) as task, T.sblock("conv"):
            T.reads(*map(whole, (each for name, each in arguments.items() if name != "y")))
            T.writes(whole(arguments["y"]))
            tile, block = divided(task, self.tasks)
            self._write_task(arguments, divided(tile, lines.tiles), block)

    def _write_task(self, arguments: Arguments, at: At, block: tirx.Expr) -> None:
        lines, spec = self.lines, self.lines.spec
        acc = new_buffer("acc", (self.held_floats,), "local")
        sums = new_buffer("sums", (self.kept_filters, self.kept_floats)) if self.keeps_sums else None
        if self.steps > 1:
            # TVM takes a buffer for smaller where all of its accesses depend on data.
            with T.serial(self.filters) as f:
                self._each(lambda p: T.buffer_store(sums, ZERO, [f, p]))
        packed = None
        if not lines.is_direct:
            packed = new_buffer("packed", (spec.groups * self.channels * lines.channel,))
            self._clear(packed)
        with T.serial(self.steps) as step:
            if packed is not None:
                with T.serial(spec.groups) as group, T.serial(self.channels) as c:
                    channel = group * spec.weight_shape[1] + step * self.channels + c
                    first = (group * self.channels + c) * lines.channel
                    self._pack(arguments["x"], at, channel, packed, first)
            self._write_lists(Task(arguments, at, block, acc, sums, packed), step)

    def _write_lists(self, task: Task, step: tirx.Expr) -> None:
        """Multiply those of a step."""
        with T.serial(self.lists) as position:
            self._write_list(task, step, position)

    def _write_list(self, task: Task, step: tirx.Expr, position: tirx.Expr) -> None:
        """Multiply one list: a filter's non-zeros in the channels of a step."""
        acc, sums = task.acc, task.sums
        values, places, ends, order = (task.arguments[name] for name in ("values", "places", "ends", "order"))
        which = (task.block * self.steps + step) * self.filters + position
        before = sums if self.steps > 1 else None
        self._each(lambda p: T.buffer_store(acc, ZERO if before is None else before[order[which], p], [p]))

        with T.serial(ends[which], ends[which + 1]) as e:
            self._each(lambda p: T.buffer_store(acc, acc[p] + values[e] * self._read(task, places[e] + p), [p]))

        def end() -> None:
            self._write_end(task, order[which])

        if self.steps == 1:
            end()
        else:
            is_last = step == self.steps - 1
            either(is_last, end, lambda: self._each(lambda p: T.buffer_store(sums, acc[p], [order[which], p])))

    def _read(self, task: Task, place: tirx.Expr) -> tirx.Expr:
        """What lies at a place of a tile."""
        if task.packed is not None:
            return task.packed[place]
        # An image lies in memory as a packed one would: the indices flatten to the same address.
        image, tile = task.at
        return task.arguments["x"][image, 0, 0, tile * (self.lines.rows * self.lines.width) + place]

    def _each(self, write: Callable[[tirx.Expr], None]) -> None:
        """`write` each vector of a tile."""
        for vector in range(self.lines.vectors):
            with T.vectorized(self.lines.lanes) as lane:
                write(vector * self.lines.lanes + lane)

    def _write_end(self, task: Task, which: tirx.Expr) -> None:
        """Write what comes of a filter's sums."""
        self._store(task.arguments, task.acc, task.at, task.block * self.filters + which)

    def _store(self, arguments: Arguments, acc: tirx.Var, at: At, k: tirx.Expr) -> None:
        """Store a filter's output pixels of a tile."""
        lines, y = self.lines, arguments["y"]
        block, part = divided(at[1], lines.parts)

        def store(columns: int) -> None:
            for vector, first, count, row, column in lines.runs(columns):
                with T.vectorized(count) as lane:
                    index = [at[0], k, block * lines.rows + row, part * lines.width + column + lane]
                    value = acc[vector * lines.lanes + first + lane]
                    T.buffer_store(y, epilogue(lines.spec, arguments, value, index), index)

        self._by_columns(part, store)

    def _by_columns(self, part: tirx.Expr, store: Callable[[int], None]) -> None:
        """`store` so many columns of output pixels as a part of a row has."""
        whole_row, last = self.lines.columns(), self.lines.columns(self.lines.parts - 1)
        if whole_row == last:
            store(whole_row)
        else:
            either(part < self.lines.parts - 1, partial(store, whole_row), partial(store, last))

    def _clear(self, packed: tirx.Var) -> None:
        """Set a packed tile to zero, of which packing writes what lies in the image: the same in each step."""
        lanes = self.lines.lanes
        with T.serial(int(packed.shape[0]) // lanes) as vector, T.vectorized(lanes) as lane:
            T.buffer_store(packed, ZERO, [vector * lanes + lane])

    def _pack(self, x: tirx.Var, at: At, channel: tirx.Expr, packed: tirx.Var, first: tirx.Expr) -> None:
        """Write what a tile reads of a channel."""
        lines, spec = self.lines, self.lines.spec
        if not lines.is_flat:
            for index, copy in enumerate(lines.copies):
                self._pack_copy(x, at, channel, copy, packed, first + index * lines.copy_floats)
            return
        for begin, count in self._runs(lines.rows * lines.width):
            with T.vectorized(count) as lane:
                row, column = divided(at[1] * (lines.rows * lines.width) + begin + lane, spec.w)
                T.buffer_store(packed, widened(x[at[0], channel, row, column]), [first + begin + lane])

    def _pack_copy(
        self, x: tirx.Var, at: At, channel: tirx.Expr, copy: Copy, packed: tirx.Var, first: tirx.Expr
    ) -> None:
        lines, spec = self.lines, self.lines.spec
        block, part = divided(at[1], lines.parts)
        with T.serial(lines.copy_floats // lines.width) as i:
            row = (block * lines.rows + i + copy.down) * spec.stride[0] + copy.phase_y - spec.padding[0]

            def copied() -> None:
                for index in range(lines.parts):
                    to = first + i * lines.width
                    copy_part = partial(self._copy_columns, x, (at[0], channel, row), copy, index, packed, to)
                    copy_part() if lines.parts == 1 else either(part == index, copy_part)

            either(tirx.all(row >= 0, row < spec.h), copied)

    def _copy_columns(self, x: tirx.Var, row: tuple, copy: Copy, part: int, packed: tirx.Var, to: tirx.Expr) -> None:
        """Copy those columns of a row that lie in the image."""
        width, spec, stride = self.lines.width, self.lines.spec, self.lines.spec.stride[1]
        first = (part * width + copy.right) * stride + copy.phase_x - spec.padding[1]
        columns = [j for j in range(width) if 0 <= first + j * stride < spec.w]
        if not columns:
            return
        for begin, count in self._runs(len(columns)):
            j = columns[0] + begin
            if stride == 2 and count > 1:
                pixels = every_second(x, (*row, first + j * stride), count)
                T.buffer_store(packed, pixels.astype(f"{FLOAT32}x{count}"), [tirx.Ramp(to + j, 1, count)])
                continue
            with T.vectorized(count) as lane:
                place = (*row, first + (j + lane) * stride)
                T.buffer_store(packed, widened(x[place]), [to + j + lane])

    def _runs(self, floats: int) -> Iterator[tuple[int, int]]:
        """So many floats as vectors, the longest that fit, of which the last overlaps the one before."""
        count = min(self.lines.lanes, 1 << floats.bit_length() - 1)
        return ((min(begin, floats - count), count) for begin in range(0, floats, count))
