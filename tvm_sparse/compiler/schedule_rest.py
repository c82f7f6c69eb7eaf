"""Schedule for a GPU what TVM's own schedules leave: an output a thread, as adaptive pooling with uneven windows.

A function without threads would run on the CPU and read memory of the GPU, which ends the process.
"""

import tvm
from tvm import s_tir, tirx

from tvm_sparse.compiler.unscheduled import schedule_each
from tvm_sparse.errors import BuildError

THREADS = 256
SPATIAL = tirx.IterVar.DataPar


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.schedule_rest")
def schedule_rest(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with every unscheduled function scheduled for a GPU; those of shapes belong to the CPU.

    Raises
    ------
    BuildError
        A function is none that this can schedule.
    """
    return schedule_each(module, _schedule)


def _schedule(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    if "tirx.is_host_func" in func.attrs:
        return None
    sch = s_tir.Schedule(func)
    try:
        first, *steps = sch.get_child_blocks(sch.get_sblock("root"))
        count = [each.iter_type == SPATIAL for each in sch.get(first).iter_vars].count(True)
        outer, thread = sch.split(sch.fuse(*sch.get_loops(first)[:count]), [None, THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        for block, step in zip([first, *steps], steps, strict=False):
            sch.reverse_compute_at(step, thread, preserve_unit_loops=True)
            sch.set_scope(block, 0, "local")
    except (s_tir.schedule.ScheduleError, RuntimeError, ValueError) as error:
        name = func.attrs.get("global_symbol", "a function")
        raise BuildError("model", f"there is no schedule of {name} for a GPU", hint="compile for llvm") from error
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)
