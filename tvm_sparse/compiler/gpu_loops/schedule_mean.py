"""Schedule the means over few pixels that GPU models end with, a warp for each.

TVM's own schedule takes a block of threads for each of them: 80 us for 2048 channels of 64 images of 7x7 pixels on an
H200, which take 6 to read.
"""

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_sparse.compiler.rewriting.unscheduled import scheduling_pass

# Pixels of a mean: fewer would leave half a warp idle, many more would keep a block busy.
LEAST_PIXELS, MOST_PIXELS = 16, 256
# Threads of a warp, which read pixels side by side; means of a block, so that it has 256 threads.
LANES, ROWS = 32, 8
REDUCED = tirx.IterVar.CommReduce


@scheduling_pass("schedule_mean")
def schedule_mean(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> s_tir.Schedule | None:
    """A mean over the last axes, of few elements; None where it is none, or more than an epilogue is beside it."""
    if len(blocks) < 2 or not all(isinstance(sch.get(loop).extent, tirx.IntImm) for loop in sch.get_loops(blocks[0])):
        return None
    total, *steps = blocks
    loops, is_sum = sch.get_loops(total), [each.iter_type == REDUCED for each in sch.get(total).iter_vars]
    spatial, extents = is_sum.count(False), [int(sch.get(loop).extent) for loop in loops]
    pixels = math.prod(extents[spatial:])
    if any([int(sch.get(loop).extent) for loop in sch.get_loops(step)] != extents[:spatial] for step in steps):
        return None
    # A warp cannot reduce a pair, as of a largest value and its place.
    if len(sch.get(total).writes) > 1:
        return None
    if not LEAST_PIXELS <= pixels <= MOST_PIXELS or sorted(is_sum) != is_sum:
        return None
    for step in steps[:-1]:
        sch.compute_inline(step)
    outer, row = sch.split(sch.fuse(*loops[:spatial]), [None, ROWS])
    _, lane = sch.split(sch.fuse(*loops[spatial:]), [None, LANES])
    sch.bind(outer, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.set_scope(total, 0, "local")
    sch.reverse_compute_at(steps[-1], row, preserve_unit_loops=True)
    return sch
