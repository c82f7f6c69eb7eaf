"""Schedule a CPU model's interleaved maps, such as what transposed convolutions and pixel shuffles write.

Neighbours in the result lie in several channels of what is read. LLVM reads these in vectors and shuffles them where
one turn of a loop writes one element of each; of a loop over all elements it makes a load and a store for each.
"""

import math

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_sparse.compiler.cpu_loops.schedule_elements import LEAST_WORK, maps, outermost
from tvm_sparse.compiler.rewriting.unscheduled import extents, interleaving, scheduling_pass

# Neighbours that one turn writes, at most.
MOST = 8


@scheduling_pass("schedule_interleaved")
def schedule_interleaved(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> s_tir.Schedule | None:
    """Schedule a function that is one map; None where its last axis goes through no channels in turn."""
    left = maps(sch, blocks)
    stride = interleaving(sch, left[0]) if len(left) == 1 else 1
    if not 1 < stride <= MOST:
        return None
    *loops, last = sch.get_loops(left[0])
    sizes = extents(sch, loops)
    sch.unroll(sch.split(last, [None, stride])[1])
    if loops and math.prod(extents(sch, sch.get_loops(left[0]))) >= LEAST_WORK:
        sch.parallel(sch.fuse(*loops[: outermost(sizes)]))
    return sch
