"""Schedule a GPU model's pools, several outputs a thread.

TVM's own schedule keeps an output in global memory while it looks at its window, an output a thread, and spends most of
its instructions on where the window's values lie. In half precision such a pool takes 3 to 6 times as long as its bytes
(an H200).
"""

import math

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_sparse.compiler.rewriting.unscheduled import (
    UNKNOWN,
    extents,
    is_padding,
    largest_divisor,
    scheduling_pass,
    spread,
    vector_length,
)

# Rows of outputs that a thread computes in NCHW at most: their windows overlap, what they share is read once.
MOST_ROWS = 4
# Values of a window at most: all of them are unrolled.
LARGEST_WINDOW = 25
SPATIAL = tirx.IterVar.DataPar


@scheduling_pass("schedule_pool")
def schedule_pool(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> s_tir.Schedule | None:
    """A pool in NCHW or NHWC, of small windows; None where it is none, or more than an epilogue is beside it."""
    padding = [each for each in blocks if is_padding(sch, each)]
    others = [each for each in blocks if each not in padding]
    if not others:
        return None
    pool, *steps = others
    sizes = extents(sch, sch.get_loops(pool))
    if len(sizes) != 6 or UNKNOWN in sizes or math.prod(sizes[4:]) > LARGEST_WINDOW:
        return None
    if [each.iter_type for each in sch.get(pool).iter_vars].count(SPATIAL) != 4:
        return None
    if any(extents(sch, sch.get_loops(step)) != sizes[:4] for step in steps):
        return None
    is_nhwc = _reads_whole_channels(sch, pool)
    for each in (*padding, *steps[:-1]):
        sch.compute_inline(each)
    _apply(sch, pool, steps[-1:], is_nhwc)
    return sch


def _reads_whole_channels(sch: s_tir.Schedule, pool: SBlockRV) -> bool:
    """Whether windows reach over the second and third axis, as in NHWC, and not over the last."""
    block = sch.get(pool)
    last = block.reads[0].region[-1].min
    return bool(last.same_as(block.iter_vars[3].var))


def _apply(sch: s_tir.Schedule, pool: SBlockRV, epilogue: list[SBlockRV], is_nhwc: bool) -> None:
    axis = 3 if is_nhwc else 2
    size, bits = extents(sch, sch.get_loops(pool))[axis], tvm.DataType(sch.get(pool).writes[0].source.dtype).bits
    own = vector_length(bits, size) if is_nhwc else largest_divisor(size, MOST_ROWS)
    last = epilogue[0] if epilogue else sch.cache_write(pool, 0, "local")
    if epilogue:
        sch.set_scope(pool, 0, "local")
    thread = _bind(sch, pool, axis, own)
    sch.reverse_compute_at(last, thread, preserve_unit_loops=True)
    for block in (pool, last):
        *window, inner = sch.get_loops(block)[2:]
        for loop in window:
            sch.unroll(loop)
        (sch.vectorize if is_nhwc else sch.unroll)(inner)
    sch.decompose_reduction(pool, sch.get_loops(pool)[2])


def _bind(sch: s_tir.Schedule, pool: SBlockRV, axis: int, own: int) -> LoopRV:
    """Spread `pool` over threads, with `own` outputs along `axis` a thread as its innermost loops."""
    loops = sch.get_loops(pool)
    outer, inner = sch.split(loops[axis], [None, own])
    sch.reorder(*loops[:axis], outer, *loops[axis + 1 : 4], *loops[4:], inner)
    return spread(sch, sch.get_loops(pool)[:4])
