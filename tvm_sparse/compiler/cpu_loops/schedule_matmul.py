"""Schedule the fully connected layers of a CPU model, which TVM's CPU pipeline leaves as the plainest of loops.

They are no business of ours but for one thing: beside fast convolutions, 5 ms of ResNet-50's last layer would show. The
weight is read once, and long runs of a few of its rows at a time are what memory delivers fastest: of that layer's 8 MB
columns of 40 took 0.75 ms, all 1000 of four rows 0.22 (docs/lab/linear.md).
"""

import math
from functools import partial

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_sparse.compiler.rewriting.unscheduled import scheduling_pass
from tvm_sparse.scheduling.space import divisors

# Outputs of a thread at a time: half a level-1 cache of sums.
MOST_OUTPUTS = 4096
# How long a run of a row takes to begin, in the time of reading an output's weight.
BEGINNING = 64
# Rows of the weight that are read at a time.
ROWS = 4
# Floats of a vector, as many as divide the outputs.
VECTORS = (16, 8, 4, 1)


def schedule_matmul(threads: int) -> tvm.transform.Pass:
    """The pass that vectorises every unscheduled (N, K) x (K, M) product along M, which `threads` divide."""
    return scheduling_pass("schedule_matmul")(partial(_schedule, threads=threads))


def _schedule(sch: s_tir.Schedule, blocks: list[SBlockRV], threads: int) -> s_tir.Schedule | None:
    """Schedule a function; None where it is no product of matrices of known size."""
    product = next((each for each in blocks if sch.get(each).name_hint == "matmul"), None)
    if product is None:
        return None
    loops = sch.get_loops(product)
    if len(loops) != 3 or not all(isinstance(sch.get(each).extent, tirx.IntImm) for each in loops[1:]):
        return None
    if threads > 1 and sch.get(loops[0]).extent == 1:
        _share_rows(sch, product, threads)
    else:
        _share_columns(sch, product, threads)
    return sch


def _share_columns(schedule: s_tir.Schedule, product: SBlockRV, threads: int) -> None:
    """Let each thread compute some outputs."""
    row, column, reduction = schedule.get_loops(product)
    tile, lanes = _tile(int(schedule.get(column).extent), threads)
    outer, vector, lane = schedule.split(column, [None, tile // lanes, lanes])
    reduction, unrolled = schedule.split(reduction, [None, math.gcd(int(schedule.get(reduction).extent), ROWS)])
    schedule.reorder(outer, row, reduction, vector, unrolled, lane)
    accumulators = schedule.cache_write(product, 0, "local")
    schedule.reverse_compute_at(accumulators, row, preserve_unit_loops=True)
    schedule.vectorize(lane)
    schedule.unroll(unrolled)
    schedule.parallel(outer)
    schedule.decompose_reduction(product, reduction)


def _share_rows(schedule: s_tir.Schedule, product: SBlockRV, threads: int) -> None:
    """Let each thread read some rows of the weight, which lie one behind the other, for all outputs of an image."""
    _, column, reduction = schedule.get_loops(product)
    parts = divisors(int(schedule.get(reduction).extent), threads)[-1]
    part, reduction = schedule.split(reduction, [parts, None])
    partial = schedule.rfactor(part, 0)
    _, column, part, reduction = schedule.get_loops(partial)
    outputs, rows = int(schedule.get(column).extent), int(schedule.get(reduction).extent)
    vector, lane = schedule.split(column, [None, _lanes(outputs)])
    reduction, unrolled = schedule.split(reduction, [None, math.gcd(rows, ROWS)])
    schedule.reorder(part, reduction, vector, unrolled, lane)
    schedule.vectorize(lane)
    schedule.unroll(unrolled)
    schedule.parallel(part)
    schedule.decompose_reduction(partial, reduction)
    _, column, part = schedule.get_loops(product)
    vector, lane = schedule.split(column, [None, _lanes(outputs)])
    schedule.reorder(vector, part, lane)
    schedule.vectorize(lane)
    schedule.decompose_reduction(product, part)


def _tile(outputs: int, threads: int) -> tuple[int, int]:
    """Outputs of a thread at a time, such that all threads end at once, and floats of a vector of these."""

    def cost(tile: int) -> float:
        return -(-outputs // tile // threads) * (tile + BEGINNING) / min(4, _lanes(tile))

    tile = min(divisors(outputs, MOST_OUTPUTS), key=cost)
    return tile, _lanes(tile)


def _lanes(tile: int) -> int:
    return next(each for each in VECTORS if tile % each == 0)
