"""The functions of a module that no pass has scheduled yet."""

from collections.abc import Callable

import tvm
from tvm import tirx


def schedule_each(module: tvm.IRModule, schedule: Callable[[tirx.PrimFunc], tirx.PrimFunc | None]) -> tvm.IRModule:
    """`module` with each function that was not scheduled as `schedule` makes it, or as it was for None."""
    result = module.clone()
    for name, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {}):
            scheduled = schedule(func)
            if scheduled is not None:
                result[name] = scheduled
    return result
