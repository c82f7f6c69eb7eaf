"""TVM's own schedules for a GPU, where a rule that fails on a function leaves it to the next one.

TVM's pass fails as a whole: `GeneralReduction` raises on a layer norm that is fused with the padding behind it, as in
Swin transformers.
"""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.schedule import SBlockRV, ScheduleError
from tvm.target import Target

from tvm_sparse.compiler.rewriting.unscheduled import extents, is_served, launches_threads, scheduling_pass, spread
from tvm_sparse.errors import BuildError

RULES = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction, dlight.gpu.GeneralReduction, dlight.gpu.Fallback)
SPATIAL = tirx.IterVar.DataPar


class _Careful(dlight.ScheduleRule):
    """`rule`, which serves no function that it fails on."""

    def __init__(self, rule: dlight.ScheduleRule):
        self.rule = rule

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Any:
        try:
            return self.rule.apply(func, target, tunable)
        except ScheduleError:
            return None


def default_schedules() -> tvm.transform.Pass:
    """The pass that schedules each function by the first rule that serves it."""
    return dlight.ApplyDefaultSchedule(*(_Careful(rule()) for rule in RULES))


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.schedule_rest")
def schedule_rest(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with every function that these leave scheduled, an output a thread; those of shapes belong to the CPU.

    Such is adaptive pooling with uneven windows. A function without threads would run on the CPU and read memory of the
    GPU, which ends the process. TVM's scatters need none: they come with their threads. BuildError where a function is
    none that this can schedule.
    """
    result = _scheduled(module)
    for name, func in result.functions_items():
        if isinstance(func, tirx.PrimFunc) and not is_served(func) and not launches_threads(func):
            problem = f"there is no schedule of {name.name_hint} for a GPU"
            raise BuildError("model", problem, hint="compile for llvm")
    return result


@scheduling_pass("schedule_reductions")
def _scheduled(sch: s_tir.Schedule, blocks: list[SBlockRV]) -> s_tir.Schedule | None:
    """Schedule a function; None where it is no reduction or map with maps of the same extents behind it."""
    first, *steps = blocks
    count = [each.iter_type == SPATIAL for each in sch.get(first).iter_vars].count(True)
    loops = sch.get_loops(first)[:count]
    # A thread has the values before it that are its own, and no other's.
    if not loops or any(extents(sch, sch.get_loops(step)) != extents(sch, loops) for step in steps):
        return None
    thread = spread(sch, loops)
    for block, step in zip([first, *steps], steps, strict=False):
        sch.reverse_compute_at(step, thread, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    return sch
