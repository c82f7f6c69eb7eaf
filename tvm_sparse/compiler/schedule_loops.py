"""Schedule whatever else a CPU model computes, pooling and what is between convolutions, for all threads.

TVM's CPU pipeline leaves it as plain loops of one thread: ResNet-18's max pooling took 0.4 ms on two cores of a Zen 4,
where the 3x3 convolution behind it takes 0.25. Loops inside are left to LLVM, which vectorises them.
"""

import math
from collections.abc import Sequence

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_sparse.compiler.unscheduled import extents, is_padding, schedule_each

# Elements that a block of loops visits from which on threads gain more than the 5 us that they take to begin.
LEAST_WORK = 1 << 15
# Turns of the parallel loop that keep threads equally busy.
ENOUGH = 16
# Axes of a tensor in blocks of so many channels (`conv.nchwc`), which pools may read and write.
AXES, CHANNELS = 5, 16
_SPATIAL, _REDUCED = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.schedule_loops")
def schedule_loops(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with the outer loops of every unscheduled function parallel, where they are long enough."""
    return schedule_each(module, _schedule)


def _schedule(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """`func` scheduled, or None where it has loops of unknown length, dependent elements or little work."""
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    if not all(_is_plain(sch, each) for each in blocks):
        return None
    blocks = [each for each in blocks if not _is_inlined(sch, each)]
    try:
        is_parallel = [_run_in_parallel(sch, each) for each in blocks if not is_padding(sch, each)]
    except s_tir.ScheduleError:
        # What TVM cannot prove to be independent stays as it is.
        return None
    return sch.mod["main"].with_attr("tirx.is_scheduled", True) if any(is_parallel) else None


def _is_inlined(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Compute a block where it is read, if that is once for each element; whether it was done.

    A chain of operators between layers would be as many passes over memory otherwise: the hard swishes of MobileNetV3,
    six each, took half of its time.
    """
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or is_padding(sch, block):
        return False
    sizes = [extents(sch, sch.get_loops(each)) for each in (block, consumers[0])]
    are_maps = all(_spatial(sch, each) == len(size) for each, size in zip((block, consumers[0]), sizes, strict=True))
    if not are_maps or sizes[0] != sizes[1]:
        return False
    try:
        sch.compute_inline(block)
    except s_tir.ScheduleError:
        # The output, for example, which somebody reads.
        return False
    return True


def _run_in_parallel(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block's outer loops are parallel now; its padding, if it has some, is made within them."""
    loops, spatial = sch.get_loops(block), _spatial(sch, block)
    sizes = extents(sch, loops)
    padding = [each for each in sch.get_producers(block) if is_padding(sch, each)]
    is_map = spatial == len(loops)
    if math.prod(sizes) < LEAST_WORK or (is_map and padding):
        return False
    # The last loop is for vectors, unless a sum is.
    counts = range(1, spatial + (not is_map))
    outer = next((count for count in counts if math.prod(sizes[:count]) >= ENOUGH), max(counts, default=0))
    if math.prod(sizes[:outer]) == 1:
        return False
    fused = sch.fuse(*loops[:outer])
    for each in padding:
        sch.compute_at(each, fused, preserve_unit_loops=True)
    sch.parallel(fused)
    if not is_map and outer < spatial == AXES and sizes[spatial - 1] == CHANNELS:
        _vectorize_channels(sch, block, loops[outer:spatial], loops[spatial:])
    return True


def _vectorize_channels(
    sch: s_tir.Schedule, block: SBlockRV, spatial: Sequence[LoopRV], reduced: Sequence[LoopRV]
) -> None:
    """Compute the channels of a block, the last of the axes, at once: LLVM vectorises along a sum otherwise."""
    *_, lanes = spatial
    sch.reorder(*reduced, lanes)
    init = sch.decompose_reduction(block, reduced[0])
    for each in (lanes, sch.get_loops(init)[-1]):
        sch.vectorize(each)


def _is_plain(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether each loop of known length is one axis, which elements of the result or of a sum lie along."""
    loops, axes = [sch.get(loop) for loop in sch.get_loops(block)], sch.get(block).iter_vars
    kinds = [each.iter_type for each in axes]
    are_known = all(isinstance(loop.extent, tirx.IntImm) for loop in loops)
    spatial = kinds.count(_SPATIAL)
    in_order = kinds == [_SPATIAL] * spatial + [_REDUCED] * (len(kinds) - spatial)
    return are_known and in_order and len(loops) == len(axes) > 1 and spatial > 0


def _spatial(sch: s_tir.Schedule, block: SBlockRV) -> int:
    return [each.iter_type for each in sch.get(block).iter_vars].count(_SPATIAL)
