"""`LineKernel` on integers of eight bits: an instruction multiplies four input channels of a vector of pixels.

Four channels of a pixel are packed as the bytes of an int32, and so are four weights of a filter: to the geometry of
lines they are one channel. Sums are int32, so exact whatever their size. Input and output are float32; between layers
of a network they are bytes, as a `ByteForm` says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import add
from typing import NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.byte_form import ByteForm, Stage, starts
from tvm_sparse.conv.codes import CODES, FOUR, in_fours
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.byte_codes import codes_of
from tvm_sparse.scheduling.cpu.byte_copies import layer_function, pixels_of_four
from tvm_sparse.scheduling.cpu.byte_groups import joined_weight, parts_of
from tvm_sparse.scheduling.cpu.byte_lists import in_sets, unsaturated
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit
from tvm_sparse.scheduling.cpu.byte_vectors import INT32, pixels_at
from tvm_sparse.scheduling.cpu.line_kernel import Arguments, At, LineKernel
from tvm_sparse.scheduling.cpu.lines import Copy
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.scheduling.tir_writing import divided, either, new_buffer

# Sums that hide the latency of a product: two begin in a cycle, and one takes five.
HIDING_SUMS = 7
# Sums of the filters that are stored together, which the level-1 cache holds beside the pixels of a step.
SUMS_BYTES = 1 << 13


class _List(NamedTuple):
    """A list's number, filter, row of memory with its sums between steps, its step, and the fours before its part."""

    number: tirx.Expr
    filter: tirx.Expr
    row: tirx.Expr
    step: tirx.Expr
    before: tirx.Expr


class _Floats:
    """int32 sums, read as float32."""

    def __init__(self, sums: tirx.Var):
        self._sums = sums

    def __getitem__(self, lane: tirx.Expr) -> tirx.Expr:
        return self._sums[lane].astype(FLOAT32)


@dataclass(frozen=True)
class ByteKernel(LineKernel):
    """A kernel for `spec`, whose `lines` are those of `of_fours`; `nnz` counts values of lists, and `channels`
    is fours of a step. With `form` it is one of a network.
    """

    spec: ConvSpec
    unit: ByteUnit
    form: ByteForm | None = None

    @cached_property
    def sets(self) -> int:
        """So many products of a list are added up apart, as each waits for the last one's sum."""
        return max(1, -(-HIDING_SUMS // self.lines.vectors))

    @cached_property
    def chunk(self) -> int:
        """Filters of a task that are stored together."""
        if not self._stages:
            return self.filters
        most = max(FOUR, SUMS_BYTES // (4 * self.unit.lanes * self.lines.vectors))
        return max(each for each in divisors(self.filters) if each % FOUR == 0 and each <= most)

    def packed(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """As of `LineKernel`, values int32 of four weights; behind them what each filter's sums begin with."""
        fours = in_fours(joined_weight(self.spec, weight).astype(np.int8)).transpose(0, 1, 3, 4, 2)
        # Read as float32, a four of zeros and -128 would be a zero too, with a sign.
        fours = np.ascontiguousarray(fours).view(np.int32)[..., 0]
        lines = replace(self.lines, spec=replace(self.lines.spec, k=self.spec.k))
        values, places, ends, order = LineKernel.packed(replace(self, lines=lines, filters=self.chunk), fours)
        columns: Sequence[np.ndarray] = (values, places)
        if self.unit.is_wide:
            columns, ends = unsaturated(columns, ends)
        (values, places), ends = in_sets(columns, ends, self.sets, self._most_values)
        start = starts(self.form, weight, self.spec.least + self.unit.moved)
        numbers = self.form.numbers(self.spec.k) if self.form is not None else {}
        return values, places.astype(self._place_type), ends, order, start.astype(np.int32), *numbers.values()

    @property
    def _most_values(self) -> int:
        """Values of all lists, each of whole sets."""
        return max(1, self.nnz + self.spec.k * self.steps * (self.sets - 1))

    @property
    def _place_type(self) -> str:
        """Half as many bytes a four where that is enough."""
        most = (self.lines.spec.c if self.lines.is_direct else self.channels) * self.lines.channel
        return INT32 if most > 1 << 16 else "uint16"

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return () if self.form is None else self.form.stages

    def written(self) -> tirx.PrimFunc:
        """The function with arguments x, the arrays of `packed`, [bias], [residual], y; no bias with stages."""
        lists, values, spec = self.spec.k * self.steps, self._most_values, self.spec
        sizes = {"values": values, "places": values, "ends": lists + 1, "order": lists, "start": spec.k}
        weight: dict[str, tuple[tuple[int, ...], str]] = {name: ((size,), INT32) for name, size in sizes.items()}
        weight["places"] = ((values,), self._place_type)
        return layer_function(spec, self.form, weight, spec.k, self._write)

    def _write_task(self, arguments: Arguments, at: At, block: tirx.Expr) -> None:
        lines, unit, has_steps, sums = self.lines, self.unit, self.steps > 1, None
        image, part = divided(at[0], parts_of(self.spec))
        at, block, before = (image, at[1]), part * self.blocks + block, part * lines.spec.c
        tile = lines.vectors * unit.lanes
        acc = new_buffer("acc", (self.sets * tile,), "local", INT32)
        if has_steps or self._stages:
            rows = self.filters if has_steps else self.chunk
            sums = new_buffer("sums", (rows, tile), dtype=INT32)
            for row in {0, rows - 1}:
                # TVM takes a buffer for smaller where its accesses depend on data.
                T.buffer_store(sums, unit.all_of(0), [row, unit.at(tile - unit.lanes)])
        packed = None
        if not lines.is_direct:
            packed = new_buffer("packed", (self.channels * lines.channel,), dtype=INT32)
            self._clear(packed)
        with T.serial(self.steps) as step:
            if packed is not None:
                with T.serial(self.channels) as four:
                    channel = before + step * self.channels + four
                    self._pack(arguments["x"], at, channel, packed, four * lines.channel)
            with T.serial(self.filters // self.chunk) as chunk:
                row, first = chunk * self.chunk if has_steps else 0, block * self.filters + chunk * self.chunk
                with T.serial(self.chunk) as position:
                    which = first * self.steps + step * self.chunk + position
                    order = arguments["order"][which]
                    self._multiply_list(
                        arguments, packed, sums, acc, at, _List(which, first + order, row + order, step, before)
                    )
                if self._stages:
                    write_codes = partial(self._write_codes, arguments, sums, row, at, first)
                    either(step == self.steps - 1, write_codes)

    def _multiply_list(
        self,
        arguments: Arguments,
        packed: tirx.Var | None,
        sums: tirx.Var | None,
        acc: tirx.Var,
        at: At,
        of: _List,
    ) -> None:
        values, places, ends = (arguments[name] for name in ("values", "places", "ends"))
        (which, k, row, step, before), unit = of, self.unit
        lanes, tile = unit.lanes, self.lines.vectors * unit.lanes

        def copy(to: tirx.Var, source: Callable[[tirx.Expr], tirx.Expr], *row: tirx.Expr) -> None:
            for each in map(unit.at, range(0, tile, lanes)):
                T.buffer_store(to, source(each), [*row, each])

        copy(acc, lambda _: unit.all_of(arguments["start"][k]))
        if self.steps > 1:
            either(step > 0, lambda: copy(acc, lambda at: tirx.BufferLoad(sums, [row, at])))
        for each in range(tile, self.sets * tile, lanes):
            T.buffer_store(acc, unit.all_of(0), [unit.at(each)])
        with T.serial(ends[which], ends[which + 1]) as e:
            for index in range(self.sets):
                entry = e * self.sets + index
                place = tirx.Cast(INT32, places[entry])
                weights = unit.all_of(values[entry])
                for each in range(0, tile, lanes):
                    pixels = self._pixels(arguments, packed, at, before, place + each)
                    to = unit.at(index * tile + each)
                    T.buffer_store(acc, unit.multiply_unsaturated(acc[to], pixels, weights), [to])
        for each in range(0, tile, lanes):
            parts = [acc[unit.at(index * tile + each)] for index in range(self.sets)]
            T.buffer_store(acc, reduce(add, parts), [unit.at(each)])

        keep = partial(copy, sums, lambda at: acc[at], row)
        if self._stages:
            keep()
        elif sums is None:
            self._store(arguments, _Floats(acc), at, k)
        else:
            either(step == self.steps - 1, lambda: self._store(arguments, _Floats(acc), at, k), keep)

    def _pixels(
        self, arguments: Arguments, packed: tirx.Var | None, at: At, before: tirx.Expr, place: tirx.Expr
    ) -> tirx.Expr:
        """The vector at a place of a tile."""
        if packed is not None:
            return tirx.BufferLoad(packed, [self.unit.at(place)])
        # An image lies in memory as a packed one would: the indices flatten to the same address.
        first = at[1] * (self.lines.rows * self.lines.width) + place
        return tirx.BufferLoad(arguments["x"], [at[0], before, 0, self.unit.at(first)])

    def _write_codes(self, arguments: Arguments, sums: tirx.Var, row: tirx.Expr, at: At, first: tirx.Expr) -> None:
        """Store the codes of the filters of a chunk, from `first` on, whose sums begin with a `row`."""
        with T.serial(self.chunk // FOUR) as four:
            self._write_four_codes(arguments, sums, row + four * FOUR, at, first + four * FOUR)

    def _write_four_codes(
        self, arguments: Arguments, sums: tirx.Var, first_row: tirx.Expr, at: At, first: tirx.Expr
    ) -> None:
        assert self.form is not None, "there are stages"
        form, lines, unit = self.form, self.lines, self.unit

        def number(name: str, j: int) -> tirx.Expr:
            return unit.all_of(arguments[name][first + j])

        (rows, part), k = divided(at[1], lines.parts), tirx.floordiv(first, FOUR)

        def store(columns: int) -> None:
            for vector, lane, count, row, column in lines.runs(columns):
                index = (at[0], k, rows * lines.rows + row, part * lines.width + column)
                residual = []
                if "residual" in arguments:
                    bytes_ = unit.loaded(arguments["residual"], index, lane, count)
                    residual = [(bytes_ >> unit.all_of(8 * j)) & unit.all_of(CODES - 1) for j in range(FOUR)]
                found = [tirx.BufferLoad(sums, [first_row + j, unit.at(vector * unit.lanes)]) for j in range(FOUR)]
                codes = codes_of(unit, form, found, number, residual)
                unit.store(arguments["y"], index, unit.by_pixel(codes), lane, count)

        self._by_columns(part, store)

    def _clear(self, packed: tirx.Var) -> None:
        """Set a packed tile to zeros, which are codes of their own."""
        unit = self.unit
        with T.serial(int(packed.shape[0]) // unit.lanes) as vector:
            T.buffer_store(packed, unit.zeros(self.spec.least), [unit.at(vector * unit.lanes)])

    def _pack(self, x: tirx.Var, at: At, channel: tirx.Expr, packed: tirx.Var, first: tirx.Expr) -> None:
        lines, tile = self.lines, self.lines.rows * self.lines.width
        if not lines.is_flat:
            super()._pack(x, at, channel, packed, first)
            return
        for begin, count in self._runs(tile):
            row, column = divided(at[1] * tile + begin, self.spec.w)
            # Rows touch each other in memory.
            self._pack_vector(x, (at[0], channel, row, column), count, packed, first + begin)

    def _copy_columns(self, x: tirx.Var, row: tuple, copy: Copy, part: int, packed: tirx.Var, to: tirx.Expr) -> None:
        width, spec, stride = self.lines.width, self.spec, self.spec.stride[1]
        first = (part * width + copy.right) * stride + copy.phase_x - spec.padding[1]
        columns = [j for j in range(width) if 0 <= first + j * stride < spec.w]
        for begin, count in self._runs(len(columns)) if columns else ():
            j = columns[0] + begin
            self._pack_vector(x, (*row, first + j * stride), count, packed, to + j, stride)

    def _pack_vector(
        self, x: tirx.Var, place: tuple, count: int, packed: tirx.Var, to: tirx.Expr, stride: int = 1
    ) -> None:
        """Write `count` pixels from `place` on, each of its four channels less the least code, as bytes of an int32."""
        pixels = pixels_of_four(x, place, count, stride, self.spec if self.form is None else None)
        T.buffer_store(packed, self.unit.pixels(pixels, count), [pixels_at(to, count)])
