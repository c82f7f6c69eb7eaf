"""Schedule a CPU model's sums and maxima of rows, with what follows of them: layer norms, softmaxes, means of pixels.

All of a row is computed while it is in the cache, and a sum is one of vectors first: LLVM adds a row's elements one
after the other, as another order would round differently.
"""

import math
from functools import partial

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_sparse.compiler.cpu_loops.schedule_elements import LEAST_WORK, in_vectors
from tvm_sparse.compiler.rewriting.unscheduled import UNKNOWN, extents, scheduling_pass, shares_axes
from tvm_sparse.scheduling.space import divisors

_SPATIAL, _REDUCED = tirx.IterVar.DataPar, tirx.IterVar.CommReduce
# Lanes of a vector at least: fewer gain nothing.
LEAST_LANES = 4


def schedule_rows(lanes: int) -> tvm.transform.Pass:
    """The pass that schedules every unscheduled function of rows, with vectors of up to `lanes` elements."""
    return scheduling_pass("schedule_rows")(partial(_schedule, lanes=lanes))


def _schedule(sch: s_tir.Schedule, blocks: list[SBlockRV], lanes: int) -> s_tir.Schedule | None:
    """Schedule a function; None where it has no sums of rows, or computes anything but for each row apart."""
    sizes = [extents(sch, sch.get_loops(each)) for each in blocks]
    kinds = [[axis.iter_type for axis in sch.get(each).iter_vars] for each in blocks]
    sums = [index for index, each in enumerate(kinds) if _REDUCED in each]
    if not sums or any(UNKNOWN in each or len(each) != len(kind) for each, kind in zip(sizes, kinds, strict=True)):
        return None
    count = kinds[sums[0]].count(_SPATIAL)
    rows, last = sizes[sums[0]][:count], len(blocks) - 1
    are_of_rows = all(each[:count] == rows and kind == sorted(kind) for each, kind in zip(sizes, kinds, strict=True))
    if not all(_lie_side_by_side(sch, blocks[index], len(kinds[index]) - count) for index in sums):
        return None
    if count == 0 or not are_of_rows or any(kinds[index].count(_SPATIAL) != count for index in sums) or last in sums:
        return None
    partial = {index: _partial_sums(sch, blocks[index], count, lanes) for index in sums}
    row = sch.fuse(*sch.get_loops(blocks[last])[:count])
    if math.prod(rows) > 1 and max(map(math.prod, sizes)) >= LEAST_WORK:
        sch.parallel(row)
    for index in range(last, -1, -1):
        if index < last and not _is_of_row(sch, blocks[index], row):
            return None
        if index in partial:
            _sum_in_vectors(sch, partial[index], row)
        elif len(sizes[index]) > count:
            in_vectors(sch, blocks[index], sch.get_loops(blocks[index])[-1], sizes[index][-1], lanes)
    return sch


def _is_of_row(sch: s_tir.Schedule, block: SBlockRV, row: LoopRV) -> bool:
    """Compute a block at `row`; whether what the row reads of it is its own, and no other row's."""
    before = math.prod(extents(sch, sch.get_loops(block)))
    sch.compute_at(block, row, preserve_unit_loops=True)
    return math.prod(extents(sch, sch.get_loops(block))) == before


def _lie_side_by_side(sch: s_tir.Schedule, block: SBlockRV, axes: int) -> bool:
    """Whether the last `axes` of a sum, along which it adds, are the last of each tensor that it reads, or none."""
    computed = sch.get(block)
    variables = [each.var for each in computed.iter_vars]
    return all(shares_axes([each.min for each in of.region], variables, axes) for of in computed.reads)


def _partial_sums(sch: s_tir.Schedule, block: SBlockRV, rows: int, lanes: int) -> SBlockRV | None:
    """The block that sums up every so many elements of a row, which `block` then adds; None where there are too few."""
    reduced = sch.get_loops(block)[rows:]
    sizes = extents(sch, reduced)
    if sizes[-1] % lanes:
        reduced, sizes = [sch.fuse(*reduced)], [math.prod(sizes)]
    count = divisors(sizes[-1], lanes)[-1]
    if count < LEAST_LANES:
        return None
    _, lane = sch.split(reduced[-1], [None, count])
    return sch.rfactor(lane, rows)


def _sum_in_vectors(sch: s_tir.Schedule, block: SBlockRV | None, row: LoopRV) -> None:
    """Compute partial sums at `row`, all lanes at once."""
    if block is None:
        return
    sch.compute_at(block, row, preserve_unit_loops=True)
    # The lanes come first, behind the rows.
    steps = [each.iter_type for each in sch.get(block).iter_vars].count(_REDUCED)
    _, lane, *others = sch.get_loops(block)
    sch.reorder(*others, lane)
    sch.vectorize(lane)
    init = sch.decompose_reduction(block, others[len(others) - steps])
    sch.vectorize(sch.get_loops(init)[-1])
