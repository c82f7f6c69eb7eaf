"""Schedule whatever else a CPU model computes, pooling and what is between convolutions, for all threads.

TVM's CPU pipeline leaves it as plain loops of one thread: ResNet-18's max pooling took 0.4 ms on two cores of a Zen 4,
where the 3x3 convolution behind it takes 0.25. Loops inside are left to LLVM, which vectorises them.
"""

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_sparse.compiler.cpu_loops.schedule_elements import LEAST_WORK, outermost
from tvm_sparse.compiler.rewriting.unscheduled import extents, is_padding, scheduling_pass

# Axes of a tensor in blocks of so many channels (`conv.nchwc`), which pools and means may read.
AXES, CHANNELS = 5, 16
_SPATIAL, _REDUCED = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


@scheduling_pass("schedule_loops")
def schedule_loops(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> s_tir.Schedule | None:
    """Its outer loops parallel; None where lengths are unknown, elements depend on others or work is little."""
    if not all(_is_plain(sch, each) for each in blocks):
        return None
    blocks = [each for each in blocks if not _is_inlined(sch, each)]
    of_channels = [each for each in blocks if _is_of_channels(sch, each)]
    done = [one for each in of_channels for one in _schedule_channels(sch, each)]
    names = {sch.get(each).name_hint for each in done}
    others = [each for each in blocks if sch.get(each).name_hint not in names and not is_padding(sch, each)]
    found = [_is_parallel(sch, each) for each in others]
    return sch if done or any(found) else None


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


def _is_parallel(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block's outer loops are parallel now; its padding, if it has some, is made within them."""
    loops, spatial = sch.get_loops(block), _spatial(sch, block)
    sizes = extents(sch, loops)
    padding = [each for each in sch.get_producers(block) if is_padding(sch, each)]
    is_map = spatial == len(loops)
    # The last loop is for vectors, unless a sum is.
    outer = outermost(sizes[: spatial - is_map])
    if math.prod(sizes) < LEAST_WORK or math.prod(sizes[:outer]) == 1 or (is_map and padding):
        return False
    fused = sch.fuse(*loops[:outer])
    for each in padding:
        sch.compute_at(each, fused, preserve_unit_loops=True)
    sch.parallel(fused)
    return True


def _is_of_channels(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether it is a sum or a maximum of a tensor in blocks of channels, which are the last of its axes."""
    spatial, sizes = _spatial(sch, block), extents(sch, sch.get_loops(block))
    return spatial == AXES < len(sizes) and sizes[AXES - 1] == CHANNELS


def _schedule_channels(sch: s_tir.Schedule, block: SBlockRV) -> list[SBlockRV]:
    """Compute the channels of a block at once, in a register, with what follows of each; the blocks scheduled so.

    LLVM vectorises along a sum otherwise, and stores it after each step.
    """
    sizes, padding = extents(sch, sch.get_loops(block)), [*sch.get_producers(block)]
    padding = [each for each in padding if is_padding(sch, each)]
    followers = [each for each in sch.get_consumers(block) if extents(sch, sch.get_loops(each)) == sizes[:AXES]]
    if len(followers) == len(sch.get_consumers(block)) == 1:
        (result,) = followers
        sch.set_scope(block, 0, "local")
    else:
        result = sch.cache_write(block, 0, "local")
    loops, outer = sch.get_loops(result), outermost(sizes[: AXES - 1])
    task = sch.fuse(*loops[:outer])
    if math.prod(sizes) >= LEAST_WORK and math.prod(sizes[:outer]) > 1:
        sch.parallel(task)
    sch.compute_at(block, ([task] + loops[outer:])[-2], preserve_unit_loops=True)
    for each in padding:
        sch.compute_at(each, task, preserve_unit_loops=True)
    lanes, *reduced = sch.get_loops(block)[AXES - len(sizes) - 1 :]
    sch.reorder(*reduced, lanes)
    sch.vectorize(lanes)
    init = sch.decompose_reduction(block, reduced[0])
    for each in (init, result, *padding):
        sch.vectorize(sch.get_loops(each)[-1])
    return [block, result]


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
