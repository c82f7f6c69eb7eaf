"""Escort's direct sparse convolution for CPUs: weights as data, any number of non-zeros in little code.

The input is packed so that one tap of a whole group of output rows is one contiguous run of floats
(`conv.conv2d_rows.RowGroups`). For each filter and each tile of pixel vectors, every non-zero is broadcast and
multiplied by vectors loaded at its offset; the tile's sums stay in registers.
"""

import math

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue, padded
from tvm_sparse.conv.conv2d_rows import RowGroups
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import MAX_ELEMENTS, ConvSpec
from tvm_sparse.conv.storage import FLOAT32
from tvm_sparse.scheduling.cpu_rows import layouts
from tvm_sparse.scheduling.csr import csr_function, epilogue_reads, new_buffer, stretch, whole
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, NotApplicable, Space, divisors, nearest
from tvm_sparse.target.cpu_info import CpuInfo

NAME = "csr_cpu"
TARGET = "llvm"
# Layouts offered to the search.
LAYOUTS = 2
# Vectors whose sums a filter keeps in registers at most; enough to hide the latency of the multiply-add.
TILE = 8


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some.

    Raises
    ------
    NotApplicable
        The packed input or the output has 2**31 elements or more.
    """
    found: list[Space] = []
    for layout in layouts(spec, CpuInfo.of(target).lanes)[:LAYOUTS]:
        longest = max(spec.n * spec.c * _channel(spec, layout), spec.n * spec.k * spec.out_h * layout.row_stride)
        if longest > MAX_ELEMENTS:
            raise NotApplicable(f"a buffer of {longest} floats exceeds 32-bit indices")
        found.append(CsrRowSpace(spec, pattern.nnz, layout, divisors(layout.vectors, TILE)[-1]))
    return found


def _channel(spec: ConvSpec, layout: RowGroups) -> int:
    """Floats of a packed channel."""
    return spec.h * spec.w if layout.reads_input(spec) else math.prod(layout.packed_shape(spec))


def _places(spec: ConvSpec, layout: RowGroups) -> np.ndarray:
    """Where taps (C, R, S) lie in a packed image, relative to the output pixel."""
    _, phases_x, height, width = layout.packed_shape(spec)
    c, r, s = np.ogrid[: spec.c, : spec.r, : spec.s]
    (rows, phase_y), (columns, phase_x) = (
        np.divmod(tap * dilation, stride)
        for tap, dilation, stride in zip((r, s), spec.dilation, spec.stride, strict=True)
    )
    phase = phase_y * phases_x + phase_x
    return c * _channel(spec, layout) + (phase * height + rows) * width + columns


class CsrRowSpace(HandMadeSpace):
    """The space of one layout of the packed input."""

    def __init__(self, spec: ConvSpec, nnz: int, layout: RowGroups, tile: int):
        func = csr_function(spec, nnz, lambda arguments: _write(spec, layout, tile, arguments))
        super().__init__(NAME, f"rows{layout.rows}x{layout.row_stride}", func, fold=False)
        self.spec, self.layout = spec, layout

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        return stretch(weight, _places(self.spec, self.layout))

    def apply(self, sch: Schedule, choose: Choose) -> None:
        spec, layout = self.spec, self.layout
        filters, blocks = divisors(spec.k, 32), divisors(spec.out_h // layout.rows)
        filters_block = choose.one_of("filters", filters, nearest(filters, 8))
        rows_block = choose.one_of("row_groups", blocks, nearest(blocks, 16 / layout.rows))
        n, k, y, x = sch.get_loops(sch.get_sblock("out"))
        k_outer, k_inner = sch.split(k, [None, filters_block])
        block, group, row = sch.split(y, [None, rows_block, layout.rows])
        sch.reorder(n, k_outer, block, group, k_inner, row, x)
        sch.compute_at(sch.get_sblock("conv"), k_inner, preserve_unit_loops=True)
        sch.parallel(sch.fuse(n, k_outer, block))
        if not layout.reads_input(spec):
            sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock("pack"))[:2]))


def _write(spec: ConvSpec, layout: RowGroups, tile: int, arguments: dict[str, tirx.Var]) -> None:
    """The body of the function: stages ``pack``, unless the input can be read as it is, ``conv`` and ``out``."""
    packed = None if layout.reads_input(spec) else _write_pack(spec, layout, arguments["x"])
    groups, pixels = spec.out_h // layout.rows, layout.vectors * layout.lanes
    sums = new_buffer("sums", (spec.n, spec.k, groups, pixels))
    _write_conv(spec, layout, tile, arguments, packed, sums)
    with T.grid(*spec.output_shape) as loops, T.sblock("out"):
        index = T.axis.remap("SSSS", loops)
        n, k, row, column = index
        flat = tirx.floormod(row, layout.rows) * layout.row_stride + column
        value = sums[n, k, tirx.floordiv(row, layout.rows), flat]
        T.reads(value, *epilogue_reads(spec, arguments, index))
        T.writes(arguments["y"][tuple(index)])
        T.buffer_store(arguments["y"], epilogue(spec, arguments, value, index), index)


def _write_pack(spec: ConvSpec, layout: RowGroups, x: tirx.Var) -> tirx.Var:
    phases_y, phases_x, height, width = layout.packed_shape(spec)
    packed = new_buffer("packed", (spec.n, spec.c * _channel(spec, layout)))
    with T.grid(spec.n, spec.c, phases_y, phases_x, height, width) as loops, T.sblock("pack"):
        n, c, phase_y, phase_x, row, column = T.axis.remap("SSSSSS", loops)
        place = ((c * phases_y + phase_y) * phases_x + phase_x) * (height * width) + row * width + column
        T.reads(whole(x, n, c))
        T.writes(packed[n, place])
        y, x_ = row * spec.stride[0] + phase_y, column * spec.stride[1] + phase_x
        T.buffer_store(packed, padded(spec, x, n, c, y, x_), [n, place])
    return packed


def _write_conv(
    spec: ConvSpec,
    layout: RowGroups,
    tile: int,
    arguments: dict[str, tirx.Var],
    packed: tirx.Var | None,
    sums: tirx.Var,
) -> None:
    x, values, offsets, rows = (arguments[name] for name in ("x", "values", "offsets", "rows"))
    lanes, group_step = layout.lanes, layout.rows * layout.row_stride
    with T.grid(spec.n, spec.k, spec.out_h // layout.rows, layout.vectors // tile) as loops, T.sblock("conv"):
        n, k, group, vector = T.axis.remap("SSSS", loops)
        first = vector * (tile * lanes)
        T.reads(whole(x if packed is None else packed, n), whole(values), whole(offsets), rows[k : k + 2])
        T.writes(sums[n, k, group, first : first + tile * lanes])
        acc = new_buffer("acc", (tile * lanes,), "local")
        for i in range(tile):
            with T.vectorized(lanes) as lane:
                T.buffer_store(acc, tirx.const(0.0, FLOAT32), [i * lanes + lane])
        with T.serial(rows[k], rows[k + 1]) as e:
            for i in range(tile):
                with T.vectorized(lanes) as lane:
                    place = offsets[e] + group * group_step + first + i * lanes + lane
                    # Read in place, an image lies in memory as the packed one would: the address is the same.
                    value = x[n, 0, 0, place] if packed is None else packed[n, place]
                    T.buffer_store(acc, acc[i * lanes + lane] + values[e] * value, [i * lanes + lane])
        for i in range(tile):
            with T.vectorized(lanes) as lane:
                T.buffer_store(sums, acc[i * lanes + lane], [n, k, group, first + i * lanes + lane])
