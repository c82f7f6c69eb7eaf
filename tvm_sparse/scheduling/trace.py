"""MetaSchedule's traces as logs keep those of generated spaces: what TVM can be given without harm.

A trace is ``[instructions, decisions]``; an instruction ``[kind, inputs, attributes, outputs]``, a decision ``[index of
a sampling instruction, value]``. TVM believes what it reads: from a damaged trace it may raise an error, crash the
process, or sample anew what is not decided.
"""

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from tvm_sparse.errors import BuildError, first_line
from tvm_sparse.target.resolve import plain


def problem(trace: Any) -> str:
    """Why `trace` is none; empty if it has the form of one and decides all that it samples."""
    if not (isinstance(trace, list) and len(trace) == 2 and all(isinstance(part, list) for part in trace)):
        return "it is not a list of instructions and a list of decisions"
    instructions, decisions = trace
    for index, instruction in enumerate(instructions):
        if not _is_instruction(instruction):
            return f"instruction {index} is none"
    sampled = [index for index, instruction in enumerate(instructions) if instruction[0].startswith("Sample")]
    if not all(isinstance(decision, list) and len(decision) == 2 for decision in decisions):
        return "a decision is none"
    if sorted((index for index, _ in decisions), key=repr) != sorted(sampled, key=repr):
        return "its decisions are not those of its sampling instructions"
    return ""


def _is_instruction(instruction: Any) -> bool:
    """Whether it has the form of an instruction."""
    if not (isinstance(instruction, list) and len(instruction) == 4 and isinstance(instruction[0], str)):
        return False
    outputs = instruction[3]
    return all(isinstance(part, list) for part in instruction[1:]) and all(isinstance(name, str) for name in outputs)


def replayed(func: tirx.PrimFunc, where: str, trace: Any) -> Schedule:
    """The schedule that a JSON trace makes of `func`; BuildError where it does not fit.

    TVM may crash on a trace that `measure.safe_replay` has not seen.
    """
    reason = problem(trace)
    if reason:
        raise BuildError(where, f"the trace is damaged: {reason}")
    schedule = Schedule(func, debug_mask="none")
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise BuildError(where, f"the trace does not fit: {first_line(error)}") from None
    return schedule


def trace_to_json(trace: Trace) -> Any:
    """A schedule's trace as plain JSON values."""
    return plain(trace.as_json())
