"""ConvSpec -> TE -> PrimFunc: the dense form of a convolution, before scheduling and folding.

Three computes of the same function, all with stages named ``pack``, ``conv`` and ``out``:

`conv2d` is the textbook loop nest over (n, k, y, x, c, r, s) on a zero-padded input.

`conv2d_tiles` suits thread blocks. The padded input is cut into tiles of columns that overlap, each of them aligned, so
that shared memory is filled by wide copies; rows and columns are rounded up to whole tiles.

`conv2d_rows` suits CPU vectors. The padded input is first split by stride phase and its rows laid end to end, so
that for any stride and dilation one filter tap of a whole group of output rows is one contiguous run of floats:
full vectors on maps of 7x7 as on maps of 224x224, no strided loads. Columns between rows are computed and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range
from tvm.s_tir import SBlock
from tvm.tirx import BufferRegion

from tvm_sparse.conv import ConvSpec
from tvm_sparse.lattice import lattice

# Name of the weight's argument in every PrimFunc made here.
WEIGHT = "weight"


def arguments_of(spec: ConvSpec) -> dict[str, te.Tensor]:
    """Placeholders in the order of every kernel's arguments: x, weight, [bias], [residual]."""
    arguments = {
        "x": te.placeholder(spec.input_shape, spec.dtype, name="x"),
        WEIGHT: te.placeholder(spec.weight_shape, spec.dtype, name=WEIGHT),
    }
    if spec.bias:
        arguments["bias"] = te.placeholder((spec.k,), spec.dtype, name="bias")
    if spec.residual:
        arguments["residual"] = te.placeholder(spec.output_shape, spec.dtype, name="residual")
    return arguments


def _padded(spec: ConvSpec, x: te.Tensor, n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x_: tirx.Expr) -> tirx.Expr:
    """Element (y, x_) of the zero-padded input, zero also beyond the bottom and right padding."""
    top, left = spec.padding[0], spec.padding[1]
    conditions = []
    if top:
        conditions.append(y >= top)
    conditions.append(y < top + spec.h)
    if left:
        conditions.append(x_ >= left)
    conditions.append(x_ < left + spec.w)
    return tirx.if_then_else(tirx.all(*conditions), x[n, c, y - top, x_ - left], tirx.const(0.0, spec.dtype))


def epilogue(spec: ConvSpec, arguments: dict[str, te.Tensor], value: tirx.Expr, index: tuple) -> tirx.Expr:
    if spec.bias:
        value = value + arguments["bias"][index[1]]
    if spec.residual:
        value = value + arguments["residual"][index]
    return relu(value, spec.dtype) if spec.relu else value


def relu(value: tirx.Expr, dtype: str) -> tirx.Expr:
    """``max(value, 0)`` that keeps NaN, as torch and ONNX Runtime do; a plain maximum gives 0 for it."""
    zero = tirx.const(0.0, dtype)
    return tirx.Select(value < zero, zero, value)


def prim_func(arguments: dict[str, te.Tensor], out: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func([*arguments.values(), out]).with_attr("global_symbol", "main")


def reduce_axes(spec: ConvSpec) -> list[tirx.IterVar]:
    _, channels, r, s = spec.weight_shape
    return [te.reduce_axis((0, extent), name) for extent, name in ((channels, "c"), (r, "r"), (s, "s"))]


def conv2d(spec: ConvSpec) -> tirx.PrimFunc:
    """The textbook form; arguments x, weight, [bias], [residual], y as `ConvSpec` shapes them."""
    arguments = arguments_of(spec)
    top, left, bottom, right = spec.padding
    x = arguments["x"]
    packed = x
    if any(spec.padding):
        packed = te.compute(
            (spec.n, spec.c, spec.h + top + bottom, spec.w + left + right),
            lambda n, c, y, x_: _padded(spec, x, n, c, y, x_),
            name="pack",
        )
    c, r, s = reduce_axes(spec)
    channels, filters = spec.weight_shape[1], spec.k // spec.groups
    (st_h, st_w), (dil_h, dil_w) = spec.stride, spec.dilation
    conv = te.compute(
        spec.output_shape,
        lambda n, k, y, x_: te.sum(
            packed[n, channel_of(k, filters, channels, c), y * st_h + r * dil_h, x_ * st_w + s * dil_w]
            * arguments[WEIGHT][k, c, r, s],
            axis=[c, r, s],
        ),
        name="conv",
    )
    out = te.compute(spec.output_shape, lambda *i: epilogue(spec, arguments, conv[i], i), name="out")
    return prim_func(arguments, out)


def channel_of(k: tirx.Expr, filters: int, channels: int, c: tirx.Expr) -> tirx.Expr:
    """Input channel that filter k reads at its c-th channel."""
    return tirx.floordiv(k, filters) * channels + c


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
    def of(cls, spec: ConvSpec, rows: int, lanes: int, row_stride: int | None = None) -> RowGroups:
        """Groups of `rows` rows of the convolution's output, by default `row_stride` as short as the taps allow."""
        shortest = spec.out_w + (spec.s - 1) * spec.dilation[1] // spec.stride[1]
        row_stride = max(row_stride or 0, shortest)
        pixels = (rows - 1) * row_stride + spec.out_w
        return cls(rows, row_stride, -(-pixels // lanes), lanes)

    def length(self, spec: ConvSpec) -> int:
        """Floats of a packed channel that vectors may touch."""
        groups = spec.out_h // self.rows
        rows_down = (spec.r - 1) * spec.dilation[0] // spec.stride[0]
        columns_right = (spec.s - 1) * spec.dilation[1] // spec.stride[1]
        start_of_last = (groups - 1) * self.rows * self.row_stride
        return start_of_last + self.vectors * self.lanes + rows_down * self.row_stride + columns_right

    def reads_input(self, spec: ConvSpec) -> bool:
        """Whether an input channel, as it lies in memory, already is a packed channel."""
        plain = spec.stride == (1, 1) and not any(spec.padding) and self.row_stride == spec.w
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
    groups = spec.out_h // layout.rows
    phases = (min(st_h, (spec.r - 1) * dil_h + 1), min(st_w, (spec.s - 1) * dil_w + 1))
    packed = te.compute(
        (spec.n, spec.c, *phases, -(-layout.length(spec) // stride), stride),
        lambda n, c, ph_y, ph_x, row, column: _padded(
            spec, arguments["x"], n, c, row * st_h + ph_y, column * st_w + ph_x
        ),
        name="pack",
    )
    c, r, s = reduce_axes(spec)
    channels, filters = spec.weight_shape[1], spec.k // spec.groups

    def conv_at(n: tirx.Expr, k: tirx.Expr, group: tirx.Expr, vector: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        tap = tirx.floordiv(r * dil_h, st_h) * stride + tirx.floordiv(s * dil_w, st_w)
        phase = (tirx.floormod(r * dil_h, st_h), tirx.floormod(s * dil_w, st_w))
        # Row and column of a flat position: flattening the buffer cancels the division, so vectors run over rows' ends.
        flat = group * group_step + vector * layout.lanes + lane + tap
        position = (tirx.floordiv(flat, stride), tirx.floormod(flat, stride))
        channel = channel_of(k, filters, channels, c)
        index = (n, channel, *position) if direct else (n, channel, *phase, *position)
        source = arguments["x"] if direct else packed
        return te.sum(source[index] * arguments[WEIGHT][k, c, r, s], axis=[c, r, s])

    conv = te.compute((spec.n, spec.k, groups, layout.vectors, layout.lanes), conv_at, name="conv")

    def out_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        group, flat = tirx.floordiv(y, layout.rows), tirx.floormod(y, layout.rows) * stride + x
        value = conv[n, k, group, tirx.floordiv(flat, layout.lanes), tirx.floormod(flat, layout.lanes)]
        return epilogue(spec, arguments, value, (n, k, y, x))

    func = prim_func(arguments, te.compute(spec.output_shape, out_at, name="out"))
    return _read_whole_vectors(func, layout.lanes)


def _read_whole_vectors(func: tirx.PrimFunc, lanes: int) -> tirx.PrimFunc:
    """`func`, its block ``out`` declared to read all lanes of ``conv``.

    Scheduling computes of a stage only what its readers declare. Where rows end within a vector (14 pixels of 16), it
    would make vectors of the pixels alone: they cannot be joined to wider ones and run several times slower.
    """

    def block(node: SBlock) -> SBlock:
        whole = [i for i, read in enumerate(node.reads) if read.source.name == "conv"]
        if node.name_hint != "out" or not whole:
            return node
        reads = [
            BufferRegion(read.source, [*read.region[:-1], Range(0, lanes)]) if i in whole else read
            for i, read in enumerate(node.reads)
        ]
        rest = (node.writes, node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers)
        return SBlock(node.iter_vars, reads, *rest, {**node.annotations, "explicit_read_region": whole})

    body = tvm_ffi.structural_map(func.body, (SBlock, block), order="post")
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)


@dataclass(frozen=True)
class Tiles:
    """How `conv2d_tiles` cuts the output for thread blocks.

    The output is computed on `rows` rows, OH or more, and in tiles of `columns` columns; what lies outside is dropped.
    """

    rows: int
    columns: int

    def count(self, spec: ConvSpec) -> int:
        """Tiles side by side."""
        return -(-spec.out_w // self.columns)

    def lanes(self, spec: ConvSpec) -> int:
        """Floats that are copied at once, 4, 2 or 1: they never straddle a tile, a row or its padding.

        One where the taps skip columns throughout (a 1x1 kernel with stride 2): only what is read is copied.
        """
        read = lattice(spec)
        if read.step[1] > 1:
            return 1
        step = self.columns * read.stride[1] if self.count(spec) > 1 else 4
        span = (self.columns - 1) * read.stride[1] + (spec.s - 1) * read.dilation[1] + 1
        return next(lanes for lanes in (4, 2, 1) if spec.w % lanes == 0 and step % lanes == 0 and span >= lanes)

    def lead(self, spec: ConvSpec) -> int:
        """Columns before a tile's first that are copied with it, so that copies are aligned."""
        return -spec.padding[1] % self.lanes(spec)

    def width(self, spec: ConvSpec) -> int:
        """Columns of the lattice that a tile needs, `lead` included, rounded up to whole copies."""
        lanes, read = self.lanes(spec), lattice(spec)
        needed = self.lead(spec) + (self.columns - 1) * read.stride[1] + (spec.s - 1) * read.dilation[1] + 1
        return -(-needed // lanes) * lanes


def conv2d_tiles(spec: ConvSpec, tiles: Tiles) -> tirx.PrimFunc:
    """The form whose input is staged tile by tile; arguments as `conv2d`.

    ``pack`` has axes (n, c, tile, row, group of lanes, lane); its rows and columns are those of the `lattice`, and
    columns that neighbouring tiles share are there once for each. ``conv`` has axes (n, k, row, column), whole tiles of
    columns, and no condition on any of them.
    """
    arguments, read = arguments_of(spec), lattice(spec)
    (st_h, st_w), (dil_h, dil_w) = read.stride, read.dilation
    top, left, count, lanes = spec.padding[0], spec.padding[1], tiles.count(spec), tiles.lanes(spec)
    height, copies = (tiles.rows - 1) * st_h + (spec.r - 1) * dil_h + 1, tiles.width(spec) // lanes
    # In units of copies: where tile 0 starts, and how far apart tiles are.
    start, step = -(left + tiles.lead(spec)) // lanes, tiles.columns * st_w // lanes

    def pack_at(
        n: tirx.Expr, c: tirx.Expr, tile: tirx.Expr, row: tirx.Expr, copy: tirx.Expr, lane: tirx.Expr
    ) -> tirx.Expr:
        y, column = row * read.step[0] - top, ((tile * step if count > 1 else 0) + copy) * read.step[1] + start
        last = ((count - 1) * step + copies - 1) * read.step[1] + start
        conditions = [y >= 0] if top else []
        conditions += [y < spec.h] if (height - 1) * read.step[0] - top >= spec.h else []
        conditions += [column >= 0] if start else []
        conditions += [column < spec.w // lanes] if last >= spec.w // lanes else []
        value = arguments["x"][n, c, y, column * lanes + lane]
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0.0, spec.dtype)) if conditions else value

    packed = te.compute((spec.n, spec.c, count, height, copies, lanes), pack_at, name="pack")
    c, r, s = reduce_axes(spec)
    channels, filters = spec.weight_shape[1], spec.k // spec.groups

    def conv_at(n: tirx.Expr, k: tirx.Expr, row: tirx.Expr, x_: tirx.Expr) -> tirx.Expr:
        tile, column = tirx.floordiv(x_, tiles.columns), tirx.floormod(x_, tiles.columns)
        flat = column * st_w + s * dil_w + tiles.lead(spec)
        copy, lane = tirx.floordiv(flat, lanes), tirx.floormod(flat, lanes)
        value = packed[n, channel_of(k, filters, channels, c), tile, row * st_h + r * dil_h, copy, lane]
        return te.sum(value * arguments[WEIGHT][k, c, r, s], axis=[c, r, s])

    conv = te.compute((spec.n, spec.k, tiles.rows, count * tiles.columns), conv_at, name="conv")
    out = te.compute(spec.output_shape, lambda *i: epilogue(spec, arguments, conv[i], i), name="out")
    return prim_func(arguments, out)
