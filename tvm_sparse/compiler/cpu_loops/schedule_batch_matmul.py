"""Schedule the products of two tensors of a CPU model, as of attention: a register tile of rows by vectors of columns.

TVM's CPU pipeline leaves them as the plainest of loops: they took half of the time of a Swin Transformer. Outermost
first::

    parallel over products, groups of rows
      copy what is read, with zeros up to whole tiles, if there is a rest
      for each tile of columns, each tile of rows, each step of the sum: multiply-add
      store, with what follows element by element
"""

import math
from collections.abc import Sequence
from functools import partial

import tvm
from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_sparse.compiler.rewriting.unscheduled import UNKNOWN, extents, scheduling_pass
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.cpu_info import HIDING_SUMS, CpuInfo

# Vectors of columns of a register tile at most.
MOST_VECTORS = 4
# Tasks of a thread, so that threads end together.
TASKS = 2


def schedule_batch_matmul(cpu: CpuInfo, threads: int) -> tvm.transform.Pass:
    """The pass that schedules every unscheduled product of tensors of known sizes with more than one row."""
    return scheduling_pass("schedule_batch_matmul")(partial(_schedule, cpu=cpu, threads=threads))


def _schedule(sch: s_tir.Schedule, blocks: list[SBlockRV], cpu: CpuInfo, threads: int) -> s_tir.Schedule | None:
    """Schedule a function; None where it is no such product, or does more than maps with its result."""
    product, *maps = blocks
    if sch.get(product).name_hint != "matmul":
        return None
    sizes = extents(sch, sch.get_loops(product))
    if len(sizes) < 3 or UNKNOWN in sizes or sizes[-3] == 1:
        return None
    if any(extents(sch, sch.get_loops(each)) != sizes[:-1] for each in maps):
        return None
    _tiled(sch, product, maps, cpu, threads)
    return sch


def _tiled(sch: s_tir.Schedule, product: SBlockRV, maps: Sequence[SBlockRV], cpu: CpuInfo, threads: int) -> None:
    *batch, rows, columns, _ = extents(sch, sch.get_loops(product))
    tile, vectors = tile_of(rows, columns, cpu)
    whole = [1] * len(batch) + [tile, vectors * cpu.lanes, 1]
    has_rest = rows % tile > 0 or columns % (vectors * cpu.lanes) > 0
    if has_rest:
        sch.pad_einsum(product, whole)
    padding = list(sch.get_producers(product))
    followers = [*sch.get_consumers(product), *maps] if has_rest else [*maps]
    for each in followers[:-1]:
        sch.compute_inline(each)
    sums = sch.cache_write(product, 0, "local")
    *outer, row, column, step = sch.get_loops(product)
    tiles = -(-rows // tile)
    groups = next((each for each in divisors(tiles) if math.prod(batch) * each >= TASKS * threads), tiles)
    group, row, in_tile = sch.split(row, [groups if threads > 1 else 1, None, tile])
    column, vector, lane = sch.split(column, [None, vectors, cpu.lanes])
    sch.reorder(*outer, group, column, row, step, in_tile, vector, lane)
    task = sch.fuse(*outer, group)
    sch.reverse_compute_at(sums, row, preserve_unit_loops=True)
    for each in padding:
        sch.compute_at(each, task, preserve_unit_loops=True)
    for each in followers[-1:]:
        sch.reverse_compute_at(each, task, preserve_unit_loops=True)
    sch.parallel(task)
    for loop in (in_tile, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    init = sch.decompose_reduction(product, step)
    for loop in sch.get_loops(init)[-3:-1]:
        sch.unroll(loop)
    sch.vectorize(sch.split(sch.get_loops(sums)[-1], [None, cpu.lanes])[1])


def tile_of(rows: int, columns: int, cpu: CpuInfo) -> tuple[int, int]:
    """Rows and vectors of columns of a register tile: the least idle of those whose sums hide a multiply-add."""
    fitting = [
        (tile, vectors)
        for vectors in range(1, MOST_VECTORS + 1)
        for tile in range(1, rows + 1)
        if (tile + 1) * vectors < cpu.registers
    ]

    def cost(of: tuple[int, int]) -> tuple[float, int]:
        tile, vectors = of
        filled = math.prod(-(-size // each) * each for size, each in ((rows, tile), (columns, vectors * cpu.lanes)))
        return filled * max(1.0, HIDING_SUMS / (tile * vectors)), -tile * vectors

    return min(fitting, key=cost)
