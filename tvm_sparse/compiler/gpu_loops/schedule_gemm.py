"""Schedule the dense linear layers of a GPU model: products of few rows, the images, with a large weight.

TVM's own schedules leave most of a GPU idle. For one image 16 threads add up an output's products, 128 each in turn for
ResNet-50's classifier: 11.5 us on an H200, where reading the weight takes 2. For 64 images one block of threads
computes 64 outputs of all of them: 130 us. Here more threads share a sum, with several reads in flight.
"""

from dataclasses import dataclass

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_sparse.compiler.rewriting.unscheduled import UNKNOWN, extents, largest_divisor, scheduling_pass

# Rows of the product at most: beyond, a GPU is busy with blocks of whole sums.
MOST_ROWS = 128


@dataclass(frozen=True)
class Tile:
    """How threads share a product: at most so much of each, as the sizes allow.

    `rows` and `columns` that a thread computes, each value it reads serving all of the other; `lanes` along the
    columns, whose reads of a weight's row lie side by side; `parts` of a sum, a thread each; steps of it `unrolled`.
    """

    rows: int
    columns: int
    lanes: int
    parts: int
    unrolled: int


# For up to `MATRIX_ROWS` rows, which the weight's bytes bound, and for more, which the reads of both bound.
VECTOR, MATRIX, MATRIX_ROWS = Tile(1, 1, 16, 64, 8), Tile(16, 4, 8, 32, 2), 4


@scheduling_pass("schedule_gemm")
def schedule_gemm(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> s_tir.Schedule | None:
    """A (N, C) x (C, K) product of few rows; None where it is none, or more than an epilogue is beside it."""
    if not blocks or sch.get(blocks[0]).name_hint != "matmul":
        return None
    product, *steps = blocks
    sizes = extents(sch, sch.get_loops(product))
    if len(sizes) != 3 or UNKNOWN in sizes or sizes[0] > MOST_ROWS:
        return None
    rows, columns, _ = sizes
    if any(extents(sch, sch.get_loops(step)) != [rows, columns] for step in steps):
        return None
    for step in steps[:-1]:
        sch.compute_inline(step)
    _apply(sch, product, steps[-1:], VECTOR if rows <= MATRIX_ROWS else MATRIX)
    return sch


def _apply(sch: s_tir.Schedule, product: SBlockRV, epilogue: list[SBlockRV], tile: Tile) -> None:
    *_, c = sch.get_loops(product)
    _, part = sch.split(c, [None, largest_divisor(_extent(sch, c), tile.parts)])
    partial = sch.rfactor(part, 0)
    row, column, part = sch.get_loops(product)
    row_outer, row = sch.split(row, [None, largest_divisor(_extent(sch, row), tile.rows)])
    own = largest_divisor(_extent(sch, column), tile.columns)
    column_outer, lane, column = sch.split(column, [None, _lanes(_extent(sch, column) // own, tile.lanes), own])
    sch.reorder(row_outer, column_outer, row, column, lane, part)
    sch.bind(row_outer, "blockIdx.y")
    sch.bind(column_outer, "blockIdx.x")
    sch.compute_at(partial, column_outer, preserve_unit_loops=True)
    *_, part_partial, row_partial, column_partial, c = sch.get_loops(partial)
    lane_partial, column_partial = sch.split(column_partial, [None, own])
    c_outer, c_inner = sch.split(c, [None, largest_divisor(_extent(sch, c), tile.unrolled)])
    sch.reorder(lane_partial, part_partial, c_outer, c_inner, row_partial, column_partial)
    for loop in (c_inner, row_partial, column_partial):
        sch.unroll(loop)
    # An index that is no constant puts sums into memory: 224 us instead of TVM's 130. It is nvcc that unrolls these, as
    # TVM lowers no more than one sum over threads a buffer.
    for loop in (row, column):
        sch.unroll(loop)
        sch.annotate(loop, "pragma_unroll_explicit", 0)
    for along_columns, along_parts in ((lane, part), (lane_partial, part_partial)):
        sch.bind(along_columns, "threadIdx.x")
        sch.bind(along_parts, "threadIdx.y")
    sch.set_scope(partial, 0, "local")
    if epilogue:
        sch.set_scope(product, 0, "local")
        sch.reverse_compute_at(epilogue[0], column_outer, preserve_unit_loops=True)
        row, column = sch.get_loops(epilogue[0])[-2:]
        lane, column = sch.split(column, [None, own])
        sch.reorder(lane, row, column)
        sch.bind(lane, "threadIdx.x")
        sch.unroll(row)
        sch.unroll(column)
    sch.decompose_reduction(partial, c_outer)


def _extent(sch: s_tir.Schedule, loop: LoopRV) -> int:
    return extents(sch, [loop])[0]


def _lanes(extent: int, most: int) -> int:
    """Whole sectors of a row, if the size allows."""
    return next(each for each in (most, 8, largest_divisor(extent, most)) if extent % each == 0)
