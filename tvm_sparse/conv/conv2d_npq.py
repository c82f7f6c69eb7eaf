"""Convolution over NPQ tiles, as implicit GEMM has them: tiles of consecutive outputs, whatever the size of a row.

The outputs of all images, row after row, are one line of N * P * Q pixels (P and Q are the output's height and width),
and a thread block takes some of them, wherever rows and images end. So the number of blocks can be made a multiple of
what the GPU runs at once: 64 maps of 28x28 are 132 tiles of 381 pixels, one for each multiprocessor of an H200, where
whole images would leave half of them idle for half of the time.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range
from tvm.s_tir import SBlock
from tvm.tirx import BufferRegion, BufferStore, IfThenElse

from tvm_sparse.conv.conv2d import (
    WEIGHT,
    arguments_of,
    channel_of,
    epilogue,
    input_at,
    prim_func,
    reading_all_of,
    reduce_axes,
    widened,
)
from tvm_sparse.conv.output_tiling import PixelTiling, Place


class NpqTiles(PixelTiling):
    """Tiles of `pixels` consecutive outputs, over the ends of rows and images; the last tile may be shorter."""

    @property
    def variant(self) -> str:
        return f"npq{self.pixels}"

    @property
    def count(self) -> int:
        return -(-self.spec.pixels // self.pixels)

    @cached_property
    def image_rows(self) -> int:
        """Rows of one image, padding included, that its outputs need."""
        return self.footprint[0].span(self.spec.out_h)

    @cached_property
    def input_rows(self) -> int:
        # Of the stack of all padded images.
        out_h, out_w, y = self.spec.out_h, self.spec.out_w, self.footprint[0]
        first = np.arange(self.count) * self.pixels // out_w
        last = (np.arange(1, self.count + 1) * self.pixels - 1) // out_w
        start, end = (row // out_h * self.image_rows + row % out_h * y.stride for row in (first, last))
        return int((end - start).max()) + y.halo + 1

    def source(self, tile: tirx.Expr, row: tirx.Expr, copy: tirx.Expr) -> Place:
        (down, right), height = self.footprint, self.image_rows
        stacked = self._first_row(tile) + row
        n, y = tirx.floordiv(stacked, height), tirx.floormod(stacked, height) * down.step - self.spec.padding[0]
        return n, y, copy * right.step + self.first_copy

    def first_tap(self, tile: tirx.Expr, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        place, width = tile * self.pixels + pixel, self.spec.out_w
        row = self._stacked_row(tirx.floordiv(place, width)) - self._first_row(tile)
        return row, tirx.floormod(place, width) * self.footprint[1].stride + self.lead

    def place(self, tile: tirx.Expr, pixel: tirx.Expr, bounded: bool = False) -> Place:
        at, width, size = tile * self.pixels + pixel, self.spec.out_w, self.spec.out_h * self.spec.out_w
        at = tirx.min(at, self.spec.pixels - 1) if bounded else at
        within = tirx.floormod(at, size)
        return tirx.floordiv(at, size), tirx.floordiv(within, width), tirx.floormod(within, width)

    def _stacked_row(self, row: tirx.Expr) -> tirx.Expr:
        """Where the input of output row `row` of all images begins in the stack of padded images."""
        image, within = tirx.floordiv(row, self.spec.out_h), tirx.floormod(row, self.spec.out_h)
        return image * self.image_rows + within * self.footprint[0].stride

    def _first_row(self, tile: tirx.Expr) -> tirx.Expr:
        return self._stacked_row(tirx.floordiv(tile * self.pixels, self.spec.out_w))


def conv2d_npq(tiles: PixelTiling) -> tirx.PrimFunc:
    """The form whose input is staged tile by tile; arguments as `conv2d.conv2d`.

    ``pack`` has axes (tile, c, row, copy, lane), ``conv`` and ``out`` have axes (tile, k, pixel of the tile).
    """
    arguments, taps = arguments_of(tiles.spec), reduce_axes(tiles.spec)
    packed = packed_input(tiles, arguments["x"])
    shape = (tiles.count, tiles.spec.k, tiles.pixels)
    conv = te.compute(
        shape, lambda *at: te.sum(product(tiles, packed, arguments[WEIGHT], at, taps), axis=taps), name="conv"
    )
    return written_in_place(tiles, arguments, conv)


def packed_input(tiles: PixelTiling, x: te.Tensor) -> te.Tensor:
    """The stage ``pack``: for each tile what its pixels read of the rows of the padded input."""
    spec, lanes = tiles.spec, tiles.lanes

    def pack_at(tile: tirx.Expr, c: tirx.Expr, row: tirx.Expr, copy: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        n, y, column = tiles.source(tile, row, copy)
        inside = tirx.all(n < spec.n, y >= 0, y < spec.h, column >= 0, column < spec.w // lanes)
        return tirx.if_then_else(inside, input_at(spec, x, n, c, y, column * lanes + lane), tirx.const(0.0, spec.dtype))

    return te.compute((tiles.count, spec.c, tiles.input_rows, tiles.copies, lanes), pack_at, name="pack")


def product(
    tiles: PixelTiling, packed: te.Tensor, weight: te.Tensor, at: Sequence[tirx.Expr], tap: Sequence[tirx.Expr]
) -> tirx.Expr:
    """What the weight at `tap` = (c, r, s) of a filter contributes to the output `at` = (tile, k, pixel)."""
    (tile, k, pixel), (c, r, s) = at, tap
    (row, flat), (down, right) = tiles.first_tap(tile, pixel), tiles.footprint
    # Bounds that always hold: without them TVM finds others in the divisions, and stages hundreds of rows.
    row = tirx.min(tirx.max(row, 0), tiles.input_rows - 1 - down.halo) + r * down.dilation
    flat = tirx.min(tirx.max(flat, 0), tiles.width - 1 - right.halo) + s * right.dilation
    copy, lane = tirx.floordiv(flat, tiles.lanes), tirx.floormod(flat, tiles.lanes)
    return widened(packed[tile, channel_of(tiles.spec, k, c), row, copy, lane]) * weight[k, c, r, s]


def written_in_place(tiles: PixelTiling, arguments: dict[str, te.Tensor], conv: te.Tensor) -> tirx.PrimFunc:
    """The function that ends with the stage ``out``, the epilogue of `conv` with axes (tile, k, pixel of the tile)."""

    def out_at(tile: tirx.Expr, k: tirx.Expr, pixel: tirx.Expr) -> tirx.Expr:
        n, y, x = tiles.place(tile, pixel, bounded=True)
        return epilogue(tiles.spec, arguments, conv[tile, k, pixel], (n, k, y, x))

    func = prim_func(arguments, te.compute(conv.shape, out_at, name="out"))
    # Which rows a pixel reads is a division that scheduling cannot bound: it would stage too many or too few.
    return _placed(reading_all_of(func, "conv", "pack", axes=3), tiles)


def _placed(func: tirx.PrimFunc, tiles: PixelTiling) -> tirx.PrimFunc:
    """`func` with its output, by tiles, replaced by the convolution's output (N, K, OH, OW); the tail is dropped."""
    by_tiles = func.params[-1]
    out = tirx.decl_buffer(tiles.spec.output_shape, tiles.spec.dtype, "out")

    def store(node: BufferStore) -> tirx.Stmt:
        if not node.buffer.same_as(by_tiles):
            return node
        tile, k, pixel = node.indices
        (n, y, x), exists = tiles.place(tile, pixel), tiles.exists(tile, pixel)
        written = BufferStore(out, node.value, [n, k, y, x])
        return written if exists is None else IfThenElse(exists, written, None)

    def block(node: SBlock) -> SBlock:
        if node.name_hint != "out":
            return node
        tile, k, pixel = (axis.var for axis in node.iter_vars)
        n, y, x = tiles.place(tile, pixel)
        writes = [BufferRegion(out, [Range.from_min_extent(index, 1) for index in (n, k, y, x)])]
        rest = (node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers, node.annotations)
        return SBlock(node.iter_vars, node.reads, writes, *rest)

    body = tvm_ffi.structural_map(func.body, [(BufferStore, store), (SBlock, block)], order="post")
    return tirx.PrimFunc([*func.params[:-1], out], body, func.ret_type, func.attrs)
