"""Convolution over runs of consecutive outputs: the form for thread blocks whose size is not a multiple of a row.

The outputs of all images, row after row, are one line of N * OH * OW pixels, and a thread block takes `length` of them,
wherever rows and images end. So the number of blocks can be made a multiple of what the GPU runs at once: 64 maps of
28x28 are 132 runs of 381 pixels, one for each multiprocessor of an H200, where whole images would leave half of them
idle for half of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range
from tvm.s_tir import SBlock
from tvm.tirx import BufferRegion, BufferStore, IfThenElse

from tvm_sparse.conv.conv2d import WEIGHT, arguments_of, channel_of, epilogue, prim_func, reduce_axes
from tvm_sparse.conv.conv2d_tiles import Tiles
from tvm_sparse.conv.input_footprint import lattice
from tvm_sparse.conv.spec import ConvSpec

# (n, y, x) of a pixel.
Place = tuple[tirx.Expr, tirx.Expr, tirx.Expr]


@dataclass(frozen=True)
class Runs:
    """How `conv2d_runs` cuts the output: `length` pixels a run, over the ends of rows and images."""

    length: int

    def count(self, spec: ConvSpec) -> int:
        """Runs in all; the last one may be shorter."""
        return -(-spec.n * spec.out_h * spec.out_w // self.length)

    def image_rows(self, spec: ConvSpec) -> int:
        """Rows of the `lattice` of one image, padding included, that its outputs need."""
        read = lattice(spec)
        return (spec.out_h - 1) * read.stride[0] + (spec.r - 1) * read.dilation[0] + 1

    def rows(self, spec: ConvSpec) -> int:
        """Rows of the lattice that a run needs, at most, in the stack of all padded images."""
        read = lattice(spec)
        first = np.arange(self.count(spec)) * self.length // spec.out_w
        last = (np.arange(1, self.count(spec) + 1) * self.length - 1) // spec.out_w
        start, end = (
            row // spec.out_h * self.image_rows(spec) + row % spec.out_h * read.stride[0] for row in (first, last)
        )
        return int((end - start).max()) + (spec.r - 1) * read.dilation[0] + 1

    def whole(self, spec: ConvSpec) -> Tiles:
        """The tiles of whole rows whose lanes and width hold for runs too."""
        return Tiles(spec.out_h, spec.out_w)

    @property
    def wraps(self) -> bool:
        """Whether the pixels of a warp may lie on several rows."""
        return True

    @property
    def variant(self) -> str:
        """Its name."""
        return f"npq{self.length}"

    def copies(self, spec: ConvSpec) -> int:
        """Copies of a row of a run's input."""
        tiles = self.whole(spec)
        return tiles.width(spec) // tiles.lanes(spec)

    def source(self, spec: ConvSpec, run: tirx.Expr, row: tirx.Expr, copy: tirx.Expr) -> Place:
        """(n, y, column in copies) of what is staged at `row` and `copy`, in the padding too."""
        read, height = lattice(spec), self.image_rows(spec)
        stacked = self._first_row(spec, run) + row
        n, y = tirx.floordiv(stacked, height), tirx.floormod(stacked, height) * read.step[0] - spec.padding[0]
        return n, y, copy * read.step[1] + first_copy(self, spec)

    def staged(self, spec: ConvSpec, run: tirx.Expr, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """(row, column) of a pixel's first tap in what is staged."""
        read, place = lattice(spec), run * self.length + pixel
        row = self._stacked_row(spec, tirx.floordiv(place, spec.out_w)) - self._first_row(spec, run)
        return row, tirx.floormod(place, spec.out_w) * read.stride[1] + self.whole(spec).lead(spec)

    def place(self, spec: ConvSpec, run: tirx.Expr, pixel: tirx.Expr, bounded: bool = False) -> Place:
        """(n, y, x) of a pixel of a run; `bounded`, of the last one for pixels behind it."""
        at, size = run * self.length + pixel, spec.out_h * spec.out_w
        at = tirx.min(at, spec.n * size - 1) if bounded else at
        within = tirx.floormod(at, size)
        return tirx.floordiv(at, size), tirx.floordiv(within, spec.out_w), tirx.floormod(within, spec.out_w)

    def exists(self, spec: ConvSpec, run: tirx.Expr, pixel: tirx.Expr) -> tirx.Expr | None:
        """Whether there is this pixel; None where there are all."""
        pixels = spec.n * spec.out_h * spec.out_w
        return None if pixels % self.length == 0 else run * self.length + pixel < pixels

    def _stacked_row(self, spec: ConvSpec, row: tirx.Expr) -> tirx.Expr:
        """Where the input of output row `row` of all images begins in the stack of padded images."""
        image, within = tirx.floordiv(row, spec.out_h), tirx.floormod(row, spec.out_h)
        return image * self.image_rows(spec) + within * lattice(spec).stride[0]

    def _first_row(self, spec: ConvSpec, run: tirx.Expr) -> tirx.Expr:
        return self._stacked_row(spec, tirx.floordiv(run * self.length, spec.out_w))


def first_copy(runs: Runs, spec: ConvSpec) -> int:
    """Where a padded row of the input begins, in copies."""
    tiles = runs.whole(spec)
    return -(spec.padding[1] + tiles.lead(spec)) // tiles.lanes(spec)


def conv2d_runs(spec: ConvSpec, runs: Runs) -> tirx.PrimFunc:
    """The form whose input is staged run by run; arguments as `compute.conv2d`.

    ``pack`` has axes (run, c, row, group of lanes, lane), ``conv`` and ``out`` have axes (run, k, pixel of the run).
    """
    arguments = arguments_of(spec)
    packed = packed_runs(spec, runs, arguments["x"])
    taps = reduce_axes(spec)
    shape = (runs.count(spec), spec.k, runs.length)
    conv = te.compute(
        shape, lambda *at: te.sum(product(spec, runs, packed, arguments[WEIGHT], at, taps), axis=taps), name="conv"
    )
    return written_in_place(arguments, conv, spec, runs)


def packed_runs(spec: ConvSpec, runs: Runs, x: te.Tensor) -> te.Tensor:
    """The stage ``pack``: for each run what its pixels read of the rows of the padded input."""
    lanes, zero = runs.whole(spec).lanes(spec), tirx.const(0.0, spec.dtype)

    def pack_at(run: tirx.Expr, c: tirx.Expr, row: tirx.Expr, copy: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        n, y, column = runs.source(spec, run, row, copy)
        inside = tirx.all(n < spec.n, y >= 0, y < spec.h, column >= 0, column < spec.w // lanes)
        return tirx.if_then_else(inside, x[n, c, y, column * lanes + lane], zero)

    shape = (runs.count(spec), spec.c, runs.rows(spec), runs.copies(spec), lanes)
    return te.compute(shape, pack_at, name="pack")


def product(
    spec: ConvSpec, runs: Runs, packed: te.Tensor, weight: te.Tensor, at: Sequence[tirx.Expr], tap: Sequence[tirx.Expr]
) -> tirx.Expr:
    """What the weight at `tap` = (c, r, s) of a filter contributes to the output `at` = (run, k, pixel)."""
    (run, k, pixel), (c, r, s) = at, tap
    lanes, channels, filters = runs.whole(spec).lanes(spec), spec.weight_shape[1], spec.k // spec.groups
    row, flat = runs.staged(spec, run, pixel)
    # Bounds that always hold: without them TVM finds others in the divisions, and stages hundreds of rows.
    down, right = ((extent - 1) * step for extent, step in zip((spec.r, spec.s), lattice(spec).dilation, strict=True))
    row = tirx.min(tirx.max(row, 0), runs.rows(spec) - 1 - down) + r * lattice(spec).dilation[0]
    flat = tirx.min(tirx.max(flat, 0), runs.copies(spec) * lanes - 1 - right) + s * lattice(spec).dilation[1]
    copy, lane = tirx.floordiv(flat, lanes), tirx.floormod(flat, lanes)
    value = packed[run, channel_of(k, filters, channels, c), row, copy, lane]
    return value * weight[k, c, r, s]


def written_in_place(arguments: dict[str, te.Tensor], conv: te.Tensor, spec: ConvSpec, runs: Runs) -> tirx.PrimFunc:
    """The function that ends with the stage ``out``, the epilogue of `conv` with axes (run, k, pixel of the run)."""

    def out_at(run: tirx.Expr, k: tirx.Expr, pixel: tirx.Expr) -> tirx.Expr:
        n, y, x = runs.place(spec, run, pixel, bounded=True)
        return epilogue(spec, arguments, conv[run, k, pixel], (n, k, y, x))

    func = prim_func(arguments, te.compute(conv.shape, out_at, name="out"))
    return _placed(_read_whole_rows(func), spec, runs)


def _read_whole_rows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, its block ``conv`` declared to read all rows of a channel of ``pack``.

    Scheduling stages what a block declares to read. Which rows a pixel reads is a division that it cannot bound.
    """

    def block(node: SBlock) -> SBlock:
        whole = [i for i, read in enumerate(node.reads) if read.source.name == "pack"]
        if node.name_hint != "conv" or not whole:
            return node

        def region(read: BufferRegion) -> BufferRegion:
            sizes = [Range(0, extent) for extent in read.source.ty.shape[2:]]
            return BufferRegion(read.source, [*read.region[:2], *sizes])

        reads = [region(read) if i in whole else read for i, read in enumerate(node.reads)]
        rest = (node.writes, node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers)
        return SBlock(node.iter_vars, reads, *rest, {**node.annotations, "explicit_read_region": whole})

    return tirx.PrimFunc(
        func.params, tvm_ffi.structural_map(func.body, (SBlock, block), order="post"), func.ret_type, func.attrs
    )


def _placed(func: tirx.PrimFunc, spec: ConvSpec, runs: Runs) -> tirx.PrimFunc:
    """`func` with its output, by runs, replaced by the convolution's output (N, K, OH, OW); the tail is dropped."""
    by_runs = func.params[-1]
    out = tirx.decl_buffer(spec.output_shape, spec.dtype, "out")

    def store(node: BufferStore) -> tirx.Stmt:
        if not node.buffer.same_as(by_runs):
            return node
        run, k, pixel = node.indices
        (n, y, x), exists = runs.place(spec, run, pixel), runs.exists(spec, run, pixel)
        written = BufferStore(out, node.value, [n, k, y, x])
        return written if exists is None else IfThenElse(exists, written, None)

    def block(node: SBlock) -> SBlock:
        if node.name_hint != "out":
            return node
        run, k, pixel = (axis.var for axis in node.iter_vars)
        n, y, x = runs.place(spec, run, pixel)
        writes = [BufferRegion(out, [Range.from_min_extent(index, 1) for index in (n, k, y, x)])]
        rest = (node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers, node.annotations)
        return SBlock(node.iter_vars, node.reads, writes, *rest)

    body = tvm_ffi.structural_map(func.body, [(BufferStore, store), (SBlock, block)], order="post")
    return tirx.PrimFunc([*func.params[:-1], out], body, func.ret_type, func.attrs)
