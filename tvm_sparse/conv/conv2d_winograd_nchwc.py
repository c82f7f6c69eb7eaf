"""TE compute of 3x3 convolutions by Winograd's F(2x2, 3x3) that read and write blocks of channels (`nchwc`)."""

from tvm import te, tirx

from tvm_sparse.conv.conv2d import WEIGHT, prim_func, reading_all_of
from tvm_sparse.conv.conv2d_winograd import TileBlocks, across, down, of_input, of_output
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.nchwc import Layouts, blocked_arguments, output, padded_blocks, views
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.winograd_filter import READ, TILE


def conv2d_winograd_nchwc(spec: ConvSpec, cut: TileBlocks, layouts: Layouts) -> tirx.PrimFunc:
    """The form of a convolution that `is_served`, whose tensors all lie in blocks; the weight as `transformed_weight`.

    Stages between ``pack`` and ``out`` are ``tiles`` of the input (n, block of rows, 4, 4, block of channels, tile,
    channel), their products ``conv`` (n, block of rows, block of filters, 4, 4, tile, filter), and ``sums`` (n, block
    of rows, block of filters, row, tile of it, 2, 2, filter).
    """
    arguments = blocked_arguments(spec, layouts)
    weight = arguments[WEIGHT] = te.placeholder(cut.weight_shape(spec), FLOAT32, name=WEIGHT)
    channels, columns, groups = layouts.channels, across(spec), down(spec) // cut.rows
    count = cut.columns(spec)
    height, width = TILE * down(spec) + READ - TILE, TILE * columns + READ - TILE
    pack = padded_blocks(spec, views(layouts, arguments)["x"], channels, height, width)

    def tile_at(
        n: tirx.Expr, group: tirx.Expr, i: tirx.Expr, j: tirx.Expr, block: tirx.Expr, tile: tirx.Expr, c: tirx.Expr
    ) -> tirx.Expr:
        row = tirx.floordiv(tile, columns)
        # What lies behind the last tile repeats some.
        row = row if count == cut.rows * columns else tirx.min(row, cut.rows - 1)
        y, x = (group * cut.rows + row) * TILE, tirx.floormod(tile, columns) * TILE
        return of_input(i, lambda a: of_input(j, lambda b: pack[n, block, y + a, x + b, c]))

    tiles = te.compute((spec.n, groups, READ, READ, spec.c // channels, count, channels), tile_at, name="tiles")
    c = te.reduce_axis((0, spec.c), "c")

    def conv_at(
        n: tirx.Expr, group: tirx.Expr, block: tirx.Expr, i: tirx.Expr, j: tirx.Expr, tile: tirx.Expr, lane: tirx.Expr
    ) -> tirx.Expr:
        value = tiles[n, group, i, j, tirx.floordiv(c, channels), tile, tirx.floormod(c, channels)]
        return te.sum(value * weight[block, i, j, c, lane], axis=c)

    conv = te.compute((spec.n, groups, cut.count(spec), READ, READ, count, cut.filters), conv_at, name="conv")

    def sum_at(
        n: tirx.Expr,
        group: tirx.Expr,
        block: tirx.Expr,
        row: tirx.Expr,
        column: tirx.Expr,
        i: tirx.Expr,
        j: tirx.Expr,
        lane: tirx.Expr,
    ) -> tirx.Expr:
        tile = row * columns + column
        return of_output(i, lambda a: of_output(j, lambda b: conv[n, group, block, a, b, tile, lane]))

    shape = (spec.n, groups, cut.count(spec), cut.rows, columns, TILE, TILE, cut.filters)
    sums = te.compute(shape, sum_at, name="sums")

    def value_at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        (row, i), (column, j) = ((tirx.floordiv(each, TILE), tirx.floormod(each, TILE)) for each in (y, x))
        group, row = tirx.floordiv(row, cut.rows), tirx.floormod(row, cut.rows)
        block, lane = tirx.floordiv(k, cut.filters), tirx.floormod(k, cut.filters)
        return sums[n, group, block, row, column, i, j, lane]

    func = prim_func(arguments, output(spec, layouts, arguments, value_at))
    # Tiles are whole.
    for reader, stage, axes in (("out", "sums", 3), ("sums", "conv", 4)):
        func = reading_all_of(func, reader, stage, axes)
    return func
