"""TE compute with flattened rows, for CPU vectors.

The padded input is first split by stride phase and its rows laid end to end, so that for any stride and dilation one
filter tap of a whole group of output rows is consecutive floats: full vectors on maps of 7x7 as on maps of 224x224, no
strided loads. Columns between rows are computed and dropped.
"""

from dataclasses import dataclass

from tvm import te, tirx

from tvm_sparse.conv.conv2d import (
    WEIGHT,
    arguments_of,
    channel_of,
    epilogue,
    padded,
    prim_func,
    reading_all_of,
    reduce_axes,
)
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec


@dataclass(frozen=True)
class RowGroups:
    """How `conv2d_rows` lays output rows into vectors.

    `rows` output rows (a divisor of OH) make a group; their pixels lie row after row, `row_stride` apart, in `vectors`
    vectors of `lanes` floats.
    """

    rows: int
    row_stride: int
    vectors: int
    lanes: int

    @classmethod
    def of(cls, spec: ConvSpec, rows: int, lanes: int, row_stride: int | None = None) -> "RowGroups":
        """Groups of `rows` rows of the convolution's output, by default `row_stride` as short as the taps allow."""
        shortest = spec.out_w + (spec.s - 1) * spec.dilation[1] // spec.stride[1]
        row_stride = max(row_stride or 0, shortest)
        pixels = (rows - 1) * row_stride + spec.out_w
        return cls(rows, row_stride, -(-pixels // lanes), lanes)

    def length(self, spec: ConvSpec) -> int:
        """Floats of a phase of a packed channel that vectors may touch."""
        rows_down = (spec.r - 1) * spec.dilation[0] // spec.stride[0]
        columns_right = (spec.s - 1) * spec.dilation[1] // spec.stride[1]
        start_of_last = (spec.out_h - self.rows) * self.row_stride
        return start_of_last + self.vectors * self.lanes + rows_down * self.row_stride + columns_right

    def packed_shape(self, spec: ConvSpec) -> tuple[int, int, int, int]:
        """(phases of rows, phases of columns, rows, columns) of a packed channel; of phases those that taps use."""
        extents = zip(spec.stride, (spec.r, spec.s), spec.dilation, strict=True)
        down, right = (min(stride, (taps - 1) * dilation + 1) for stride, taps, dilation in extents)
        return down, right, -(-self.length(spec) // self.row_stride), self.row_stride

    def reads_input(self, spec: ConvSpec) -> bool:
        """Whether an input channel, as it lies in memory, already is a packed channel."""
        plain = spec.stride == (1, 1) and not any(spec.padding) and self.row_stride == spec.w and spec.dtype == FLOAT32
        return plain and self.length(spec) <= spec.h * spec.w

    def waste(self, spec: ConvSpec) -> float:
        """Computed pixels / useful pixels, 1 or more."""
        return self.vectors * self.lanes / (self.rows * spec.out_w)


def conv2d_rows(spec: ConvSpec, layout: RowGroups, direct: bool = False) -> tirx.PrimFunc:
    """The form with flattened rows; arguments as `conv2d`.

    ``conv`` has axes (n, k, group, vector, lane). With `direct`, which needs ``layout.reads_input(spec)``, there is no
    stage ``pack``: the input is read in place.
    """
    arguments = arguments_of(spec)
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    stride, group_step = layout.row_stride, layout.rows * layout.row_stride

    down, right, rows, columns = layout.packed_shape(spec)
    packed = te.compute(
        (spec.n, spec.c, down, right, rows, columns),
        lambda n, c, ph_y, ph_x, row, column: padded(
            spec, arguments["x"], n, c, row * st_h + ph_y, column * st_w + ph_x
        ),
        name="pack",
    )
    c, r, s = reduce_axes(spec)

    def conv_at(n: tirx.Expr, k: tirx.Expr, group: tirx.Expr, vector: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        tap = tirx.floordiv(r * dil_h, st_h) * stride + tirx.floordiv(s * dil_w, st_w)
        phase = (tirx.floormod(r * dil_h, st_h), tirx.floormod(s * dil_w, st_w))
        # Row and column of a flat position: flattening the buffer cancels the division, so vectors run over rows' ends.
        flat = group * group_step + vector * layout.lanes + lane + tap
        position = (tirx.floordiv(flat, stride), tirx.floormod(flat, stride))
        channel = channel_of(spec, k, c)
        index = (n, channel, *position) if direct else (n, channel, *phase, *position)
        source = arguments["x"] if direct else packed
        return te.sum(source[index] * arguments[WEIGHT][k, c, r, s], axis=[c, r, s])

    conv = te.compute((spec.n, spec.k, spec.out_h // layout.rows, layout.vectors, layout.lanes), conv_at, name="conv")

    def out_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        group, flat = tirx.floordiv(y, layout.rows), tirx.floormod(y, layout.rows) * stride + x
        value = conv[n, k, group, tirx.floordiv(flat, layout.lanes), tirx.floormod(flat, layout.lanes)]
        return epilogue(spec, arguments, value, (n, k, y, x))

    func = prim_func(arguments, te.compute(spec.output_shape, out_at, name="out"))
    # Where rows end within a vector (14 pixels of 16), scheduling would make vectors of the pixels alone: they cannot
    # be joined to wider ones and run several times slower.
    return reading_all_of(func, "out", "conv", axes=1)
