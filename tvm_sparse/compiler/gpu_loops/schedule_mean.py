"""Schedule the means over few pixels that GPU models end with, a warp for each.

TVM's own schedule takes a block of threads for each of them: 80 us for 2048 channels of 64 images of 7x7 pixels on an
H200, which take 6 to read.
"""

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_sparse.compiler.rewriting.unscheduled import largest_divisor, scheduling_pass, spread

# Pixels of a mean: fewer would leave half a warp idle, many more would keep a block busy.
LEAST_PIXELS, MOST_PIXELS = 16, 256
# Threads of a warp, which read pixels side by side; means of a block, so that it has 256 threads.
LANES, ROWS = 32, 8
REDUCED = tirx.IterVar.CommReduce
# Channels side by side that a thread adds up; pixels that are read at once, all of them where they are so few.
CHANNELS, UNROLLED = 4, 64


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
    if _is_nhwc(sch, total):
        return _of_channels(sch, total, steps[-1], spatial)
    outer, row = sch.split(sch.fuse(*loops[:spatial]), [None, ROWS])
    _, lane = sch.split(sch.fuse(*loops[spatial:]), [None, LANES])
    sch.bind(outer, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.set_scope(total, 0, "local")
    sch.reverse_compute_at(steps[-1], row, preserve_unit_loops=True)
    return sch


def _is_nhwc(sch: s_tir.Schedule, total: SBlockRV) -> bool:
    """Whether channels lie side by side, and not pixels."""
    block = sch.get(total)
    return len(block.iter_vars) > 2 and bool(block.reads[0].region[-1].min.same_as(block.iter_vars[1].var))


def _of_channels(sch: s_tir.Schedule, total: SBlockRV, last: SBlockRV, spatial: int) -> s_tir.Schedule:
    """A thread for some channels of an image, which reads one pixel of these after the other."""
    image, channel, *others = sch.get_loops(total)
    ones, pixels = others[: spatial - 2], others[spatial - 2 :]
    own = largest_divisor(int(sch.get(channel).extent), CHANNELS)
    channel, lane = sch.split(channel, [None, own])
    sch.reorder(image, channel, *ones, *pixels, lane)
    thread = spread(sch, [image, channel, *ones])
    sch.set_scope(total, 0, "local")
    sch.reverse_compute_at(last, thread, preserve_unit_loops=True)
    are_few = math.prod(int(sch.get(each).extent) for each in pixels) <= UNROLLED
    for pixel in pixels if are_few else ():
        sch.unroll(pixel)
    own_loops = [each for each in sch.get_loops(last)[2:] if int(sch.get(each).extent) == own > 1]
    for each in (lane, *own_loops):
        sch.vectorize(each)
    sch.decompose_reduction(total, pixels[0])
    return sch
