"""TVM's own schedules for a GPU, where a rule that fails on a function leaves it to the next one.

TVM's pass fails as a whole: `GeneralReduction` raises on a layer norm that is fused with the padding behind it, as in
Swin transformers.
"""

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import dlight
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

RULES = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction, dlight.gpu.GeneralReduction, dlight.gpu.Fallback)


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
