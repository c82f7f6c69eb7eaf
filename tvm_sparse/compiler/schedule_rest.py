"""Schedule for a GPU what TVM's own schedules leave: an output a thread, as adaptive pooling with uneven windows.

A function without threads would run on the CPU and read memory of the GPU, which ends the process.
"""

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, ScheduleError

from tvm_sparse.compiler.unscheduled import schedule_each
from tvm_sparse.errors import BuildError

THREADS = 256
SPATIAL = tirx.IterVar.DataPar
# Attributes of functions that need no schedule: they have one, or belong to the CPU.
_SERVED = ("tirx.is_scheduled", "tirx.is_host_func")


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.schedule_rest")
def schedule_rest(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with every unscheduled function scheduled for a GPU; those of shapes belong to the CPU.

    Raises
    ------
    BuildError
        A function is none that this can schedule.
    """
    result = schedule_each(module, _schedule)
    for name, func in result.functions_items():
        if isinstance(func, tirx.PrimFunc) and not any(each in (func.attrs or {}) for each in _SERVED):
            problem = f"there is no schedule of {name.name_hint} for a GPU"
            raise BuildError("model", problem, hint="compile for llvm")
    return result


def _schedule(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """`func` scheduled; None where it is no reduction or map with maps of the same extents behind it."""
    if "tirx.is_host_func" in (func.attrs or {}):
        return None
    sch = s_tir.Schedule(func)
    try:
        first, *steps = sch.get_child_blocks(sch.get_sblock("root"))
        count = [each.iter_type == SPATIAL for each in sch.get(first).iter_vars].count(True)
        loops = sch.get_loops(first)[:count]
        extents = _extents(sch, loops)
        # A thread has the values before it that are its own, and no other's.
        if not loops or any(_extents(sch, sch.get_loops(step)) != extents for step in steps):
            return None
        outer, thread = sch.split(sch.fuse(*loops), [None, THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        for block, step in zip([first, *steps], steps, strict=False):
            sch.reverse_compute_at(step, thread, preserve_unit_loops=True)
            sch.set_scope(block, 0, "local")
    except ScheduleError:
        return None
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


def _extents(sch: s_tir.Schedule, loops: list[LoopRV]) -> list[int | None]:
    """None: one that is no constant."""
    return [getattr(sch.get(loop).extent, "value", None) for loop in loops]
