"""`LineKernel` on integers of eight bits: an instruction multiplies four input channels of 16 pixels (VNNI).

Four channels of a pixel are packed as the bytes of an int32, and so are four weights of a filter: to the geometry of
lines they are one channel. Input and output stay float32; sums are int32, so exact whatever their size.
"""

from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.codes import FOUR
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.line_kernel import Arguments, At, LineKernel, divided, every_second
from tvm_sparse.scheduling.cpu.lines import Copy, Lines
from tvm_sparse.scheduling.tir_writing import new_buffer, written_function

INT32, BYTES = "int32", "int8x64"
LANES = 16
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
    """A kernel for `spec`, whose `lines` are those of `of_fours`; `nnz` counts fours, `channels` is fours of a step."""

    spec: ConvSpec

    @property
    def _vectors(self) -> list[tirx.Expr]:
        """Where the vectors of a tile's sums are."""
        return [_vector(vector * LANES) for vector in range(self.lines.vectors)]

    def packed(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """As of `LineKernel`, values int32 of four weights; behind them what each filter's sums begin with."""
        k, c, r, s = weight.shape
        fours = weight.astype(np.int8).reshape(k, c // FOUR, FOUR, r, s).transpose(0, 1, 3, 4, 2)
        # Bits of floats are no numbers, but they are zero where all four are.
        values, *lists = super().packed(np.ascontiguousarray(fours).view(FLOAT32)[..., 0])
        start = weight.astype(np.int64).sum(axis=(1, 2, 3)) * self.spec.least
        return values.view(np.int32), *lists, start.astype(np.int32)

    def written(self) -> tirx.PrimFunc:
        """The function with arguments x, the arrays of `packed`, [bias], [residual], y."""
        lists, values = self.blocks * self.steps * self.filters, max(1, self.nnz)
        sizes = {"values": values, "places": values, "ends": lists + 1, "order": lists, "start": self.spec.k}
        return written_function(self.spec, {name: ((size,), INT32) for name, size in sizes.items()}, self._write)

    def _write_task(self, arguments: Arguments, at: At, block: tirx.Expr) -> None:
        lines = self.lines
        acc = new_buffer("acc", (lines.vectors * LANES,), "local", INT32)
        sums = new_buffer("sums", (self.filters, lines.vectors * LANES), dtype=INT32) if self.steps > 1 else None
        if sums is not None:
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
            before = _start(arguments, k) if sums is None else tirx.BufferLoad(sums, [order[which], each])
            T.buffer_store(acc, before, [each])
        with T.serial(ends[which], ends[which + 1]) as e:
            weights = tirx.reinterpret(BYTES, tirx.Broadcast(values[e], LANES))
            for vector, each in enumerate(self._vectors):
                pixels = tirx.reinterpret(BYTES, tirx.BufferLoad(packed, [_vector(places[e] + vector * LANES)]))
                sum_ = tirx.BufferLoad(acc, [each])
                T.buffer_store(acc, tirx.call_llvm_pure_intrin(f"{INT32}x{LANES}", _DOT, sum_, pixels, weights), [each])
        if sums is None:
            self._store(arguments, _Floats(acc), at, k)
            return
        with T.If(step == self.steps - 1):
            with T.Then():
                self._store(arguments, _Floats(acc), at, k)
            with T.Else():
                for each in self._vectors:
                    T.buffer_store(sums, tirx.BufferLoad(acc, [each]), [order[which], each])

    def _clear(self, packed: tirx.Var) -> None:
        """Set a packed tile to zeros, which are codes of their own."""
        zero = np.full(FOUR, -self.spec.least, np.uint8).view(np.int32)[0]
        with T.serial(int(packed.shape[0]) // LANES) as vector:
            zeros = tirx.Broadcast(tirx.const(int(zero), INT32), LANES)
            T.buffer_store(packed, zeros, [_vector(vector * LANES)])

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

        def pixels(channel: int) -> tirx.Expr:
            first = (image, four * FOUR + channel, row, column)
            if count == 1:
                return x[first]
            if stride == 2:
                return every_second(x, first, count)
            return tirx.BufferLoad(x, [*first[:3], tirx.Ramp(column, stride, count)])

        found = every(0, INT32)
        for channel in range(FOUR):
            code = tirx.Cast(
                INT32 if count == 1 else f"{INT32}x{count}", pixels(channel) - every(self.spec.least, FLOAT32)
            )
            found = found | (code << every(8 * channel, INT32))
        T.buffer_store(packed, found, [tirx.Ramp(to, 1, count) if count > 1 else to])


def _start(arguments: Arguments, k: tirx.Expr) -> tirx.Expr:
    """What the sums of a filter begin with."""
    return tirx.Broadcast(arguments["start"][k], LANES)


def _vector(first: tirx.Expr | int) -> tirx.Expr:
    return tirx.Ramp(first, 1, LANES)
