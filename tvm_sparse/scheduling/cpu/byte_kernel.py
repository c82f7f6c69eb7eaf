"""`LineKernel` on integers of eight bits: an instruction multiplies four input channels of 16 pixels (VNNI).

Four channels of a pixel are packed as the bytes of an int32, and so are four weights of a filter: to the geometry of
lines they are one channel. Sums are int32, so exact whatever their size. Input and output are float32; between layers
of a network they are bytes, as a `ByteForm` says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.byte_form import ByteForm, Stage, fours_shape
from tvm_sparse.conv.codes import FOUR
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.byte_vectors import INT32, LANES, codes_of, loaded, stored, vector_at
from tvm_sparse.scheduling.cpu.line_kernel import Arguments, At, LineKernel, divided, either, every_second
from tvm_sparse.scheduling.cpu.lines import Copy, Lines
from tvm_sparse.scheduling.tir_writing import function_of, new_buffer, written_function

BYTES = "int8x64"
_DOT = "llvm.x86.avx512.vpdpbusd.512"


class FourLines(Lines):
    """Lines of a convolution whose channels are fours of another's: they never lie so in memory."""

    is_direct = False


def of_fours(spec: ConvSpec) -> ConvSpec:
    """The convolution whose channels are the fours of channels of `spec`."""
    return replace(spec, c=spec.c // FOUR, least=1)


class _Floats:
    """int32 sums, read as float32."""

    def __init__(self, sums: tirx.Var):
        self._sums = sums

    def __getitem__(self, lane: tirx.Expr) -> tirx.Expr:
        return self._sums[lane].astype(FLOAT32)


@dataclass(frozen=True)
class ByteKernel(LineKernel):
    """A kernel for `spec`, whose `lines` are those of `of_fours`; `nnz` counts fours, `channels` is fours of a step.

    With `form` it is one of a network, with a `bias` of integers where its sums become codes.
    """

    spec: ConvSpec
    form: ByteForm | None = None
    bias: np.ndarray | None = None

    @property
    def _vectors(self) -> list[tirx.Expr]:
        """Where the vectors of a tile's sums are."""
        return [vector_at(vector * LANES) for vector in range(self.lines.vectors)]

    def packed(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """As of `LineKernel`, values int32 of four weights; behind them what each filter's sums begin with."""
        k, c, r, s = weight.shape
        fours = weight.astype(np.int8).reshape(k, c // FOUR, FOUR, r, s).transpose(0, 1, 3, 4, 2)
        # Bits of floats are no numbers, but they are zero where all four are.
        values, *lists = super().packed(np.ascontiguousarray(fours).view(FLOAT32)[..., 0])
        start = weight.astype(np.int64).sum(axis=(1, 2, 3)) * self.spec.least
        if self.bias is not None:
            start += self.bias.astype(np.int64)
        own = [np.broadcast_to(stage.own, (k,)).astype(np.float32) for stage in self._stages]
        return values.view(np.int32), *lists, start.astype(np.int32), *own

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return () if self.form is None else self.form.stages

    def written(self) -> tirx.PrimFunc:
        """The function with arguments x, the arrays of `packed`, [bias], [residual], y; no bias with stages."""
        lists, values, spec = self.blocks * self.steps * self.filters, max(1, self.nnz), self.spec
        sizes = {"values": values, "places": values, "ends": lists + 1, "order": lists, "start": spec.k}
        weight: dict[str, tuple[tuple[int, ...], str]] = {name: ((size,), INT32) for name, size in sizes.items()}
        if self.form is None:
            return written_function(spec, weight, self._write)
        shapes = {"x": (fours_shape(spec.input_shape), INT32), **weight}
        if not self._stages:
            return written_function(spec, shapes, self._write)
        shapes |= {f"own{index}": ((spec.k,), FLOAT32) for index in range(len(self._stages))}
        of_output = (fours_shape(spec.output_shape), INT32)
        shapes |= {"residual": of_output} if self.form.residual_least is not None else {}
        return function_of({**shapes, "y": of_output}, self._write)

    def _write_task(self, arguments: Arguments, at: At, block: tirx.Expr) -> None:
        lines, has_steps = self.lines, self.steps > 1
        acc = new_buffer("acc", (lines.vectors * LANES,), "local", INT32)
        is_kept = has_steps or self._stages
        sums = new_buffer("sums", (self.filters, lines.vectors * LANES), dtype=INT32) if is_kept else None
        if sums is not None and has_steps:
            # All of it: TVM takes a buffer for smaller where its accesses depend on data.
            with T.serial(self.filters) as f:
                for each in self._vectors:
                    T.buffer_store(sums, _start(arguments, block * self.filters + f), [f, each])
        packed = new_buffer("packed", (self.channels * lines.channel,), dtype=INT32)
        self._clear(packed)
        with T.serial(self.steps) as step:
            with T.serial(self.channels) as four:
                self._pack(arguments["x"], at, step * self.channels + four, packed, four * lines.channel)
            with T.serial(self.filters) as position:
                self._write_list(arguments, packed, sums, acc, at, block, step, position)
        if self._stages:
            with T.serial(self.filters // FOUR) as four:
                self._write_codes(arguments, sums, at, block, four)

    def _write_list(
        self,
        arguments: Arguments,
        packed: tirx.Var | None,
        sums: tirx.Var | None,
        acc: tirx.Var,
        at: At,
        block: tirx.Expr,
        step: tirx.Expr,
        position: tirx.Expr,
    ) -> None:
        values, places, ends, order = (arguments[name] for name in ("values", "places", "ends", "order"))
        which = (block * self.steps + step) * self.filters + position
        k = block * self.filters + order[which]
        for each in self._vectors:
            is_first = sums is None or self.steps == 1
            before = _start(arguments, k) if is_first else tirx.BufferLoad(sums, [order[which], each])
            T.buffer_store(acc, before, [each])
        with T.serial(ends[which], ends[which + 1]) as e:
            weights = tirx.reinterpret(BYTES, tirx.Broadcast(values[e], LANES))
            for vector, each in enumerate(self._vectors):
                pixels = tirx.reinterpret(BYTES, tirx.BufferLoad(packed, [vector_at(places[e] + vector * LANES)]))
                sum_ = tirx.BufferLoad(acc, [each])
                T.buffer_store(acc, tirx.call_llvm_pure_intrin(f"{INT32}x{LANES}", _DOT, sum_, pixels, weights), [each])

        def keep() -> None:
            for each in self._vectors:
                T.buffer_store(sums, tirx.BufferLoad(acc, [each]), [order[which], each])

        if self._stages:
            keep()
        elif sums is None:
            self._store(arguments, _Floats(acc), at, k)
        else:
            either(step == self.steps - 1, lambda: self._store(arguments, _Floats(acc), at, k), keep)

    def _write_codes(self, arguments: Arguments, sums: tirx.Var, at: At, block: tirx.Expr, four: tirx.Expr) -> None:
        """Store the codes of four filters of a task."""
        assert self.form is not None, "there are stages"
        form, lines, blocks = self.form, self.lines, self.filters // FOUR
        numbers = [
            [arguments[f"own{index}"][block * self.filters + four * FOUR + j] for j in range(FOUR)]
            for index in range(len(form.stages))
        ]
        (rows, part), k = divided(at[1], lines.parts), block * blocks + four

        def store(columns: int) -> None:
            for vector, first, count, row, column in self._output_runs(columns):
                index = (at[0], k, rows * lines.rows + row, part * lines.width + column)
                residual = loaded(arguments["residual"], index, first, count) if "residual" in arguments else None
                found = [tirx.BufferLoad(sums, [four * FOUR + j, vector_at(vector * LANES)]) for j in range(FOUR)]
                stored(arguments["y"], index, codes_of(form, found, numbers, residual), first, count)

        whole_row, last = lines.columns(), lines.columns(lines.parts - 1)
        if whole_row == last:
            store(whole_row)
        else:
            either(part < lines.parts - 1, lambda: store(whole_row), lambda: store(last))

    def _output_runs(self, columns: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Output pixels that lie side by side: vector, its first lane, how many, row and column."""
        lines = self.lines
        for vector in range(lines.vectors):
            begin = vector * LANES
            if lines.width == self.spec.out_w:
                # Rows touch each other in memory.
                yield vector, 0, min(LANES, lines.rows * lines.width - begin), *divmod(begin, lines.width)
            else:
                for first, count, row, column in lines.segments(vector, columns):
                    yield vector, first, count, row, column

    def _clear(self, packed: tirx.Var) -> None:
        """Set a packed tile to zeros, which are codes of their own."""
        zero = np.full(FOUR, -self.spec.least, np.uint8).view(np.int32)[0]
        with T.serial(int(packed.shape[0]) // LANES) as vector:
            zeros = tirx.Broadcast(tirx.const(int(zero), INT32), LANES)
            T.buffer_store(packed, zeros, [vector_at(vector * LANES)])

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
        image, four, row, column = place

        def every(value: float, dtype: str) -> tirx.Expr:
            return tirx.Broadcast(tirx.const(value, dtype), count) if count > 1 else tirx.const(value, dtype)

        def pixels_of(channel: tirx.Expr) -> tirx.Expr:
            first = (image, channel, row, column)
            if count == 1:
                return x[first]
            if stride == 2:
                return every_second(x, first, count)
            return tirx.BufferLoad(x, [*first[:3], tirx.Ramp(column, stride, count)])

        if self.form is not None:
            T.buffer_store(packed, pixels_of(four), [tirx.Ramp(to, 1, count) if count > 1 else to])
            return
        found = every(0, INT32)
        for channel in range(FOUR):
            code = pixels_of(four * FOUR + channel) - every(self.spec.least, FLOAT32)
            code = tirx.Cast(INT32 if count == 1 else f"{INT32}x{count}", code)
            found = found | (code << every(8 * channel, INT32))
        T.buffer_store(packed, found, [tirx.Ramp(to, 1, count) if count > 1 else to])


def _start(arguments: Arguments, k: tirx.Expr) -> tirx.Expr:
    """What the sums of a filter begin with."""
    return tirx.Broadcast(arguments["start"][k], LANES)
