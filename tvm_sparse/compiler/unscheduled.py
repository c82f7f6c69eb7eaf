"""The functions of a module that no pass has scheduled yet, and what schedules of them have in common."""

import math
from collections.abc import Callable

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

# Bytes that a thread of a GPU reads or writes at a time: the most that there is.
VECTOR_BYTES = 16


def schedule_each(module: tvm.IRModule, schedule: Callable[[tirx.PrimFunc], tirx.PrimFunc | None]) -> tvm.IRModule:
    """`module` with each function that was not scheduled as `schedule` makes it, or as it was for None."""
    result = module.clone()
    for name, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {}):
            scheduled = schedule(func)
            if scheduled is not None:
                result[name] = scheduled
    return result


def is_padding(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether it is a pool's input with a border, which one other block of loops reads."""
    return sch.get(block).name_hint.startswith("pad_temp") and len(sch.get_consumers(block)) == 1


def vector_length(bits: int, *sizes: int) -> int:
    """Values of `bits` that a thread of a GPU moves at a time: a power of two, as for TVM, that divides `sizes`."""
    return math.gcd(VECTOR_BYTES * 8 // bits, *sizes)
