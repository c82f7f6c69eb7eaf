"""MetaSchedule's traces as logs keep them: what TVM can be given without harm.

A trace is ``[instructions, decisions]``; an instruction ``[kind, inputs, attributes, outputs]``, a decision ``[index of
a sampling instruction, value]``. TVM believes what it reads: from a damaged trace it may raise an error, crash the
process, or sample anew what is not decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import s_tir
from tvm.s_tir.schedule import Trace

from tvm_sparse.errors import BuildError, first_line
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.resolve import plain

# Marks where MetaSchedule's postprocessors begin. Ours change nothing, they only look with instructions of these kinds.
POSTPROC = ["EnterPostproc", [], [], []]
LOOKS = ("GetSBlock", "GetLoops")


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


def is_own(space: Space, trace: Any) -> bool:
    """Whether `trace`, which has no `problem`, is the space's own schedule but for valid decisions.

    TVM replays such a trace without harm. Others may be sound too: those of generated spaces, and of a schedule as
    another tvm-sparse had it.
    """
    if space.apply is None:
        return False
    instructions, defaults = plain(space.scheduled(space.apply).trace.as_json())
    count = len(instructions)
    if trace[0][:count] != instructions or trace[0][count : count + 1] not in ([], [POSTPROC]):
        return False
    if not all(map(_looks, trace[0][count + 1 :])):
        return False
    values = dict(trace[1])
    return all(_is_valid(instructions[index], values[index], default) for index, default in defaults)


def _looks(instruction: list[Any]) -> bool:
    """Whether an instruction changes nothing."""
    _, inputs, attributes, _ = instruction
    return instruction[0] in LOOKS and all(isinstance(value, str) for value in (*inputs, *attributes))


def _is_valid(instruction: list[Any], value: Any, default: Any) -> bool:
    """Whether `value` is a decision of a sampling instruction, of which `default` is one."""
    kind, attributes = instruction[0], instruction[2]
    if kind == "SampleCategorical":
        return type(value) is int and 0 <= value < len(attributes[0])
    if kind == "SamplePerfectTile":
        tiles = isinstance(value, list) and len(value) == len(default) and all(type(tile) is int for tile in value)
        return tiles and min(value) > 0 and math.prod(value) == math.prod(default)
    return False


def replay(space: Space, trace: Any) -> s_tir.Schedule:
    """The schedule that a JSON trace makes of `space`; BuildError where it does not fit.

    TVM may crash on a trace that `vetting` has not seen.
    """
    reason = problem(trace)
    if reason:
        raise BuildError(f"schedule {space.name}", f"the trace is damaged: {reason}")
    schedule = s_tir.Schedule(space.func, debug_mask="none")
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise BuildError(f"schedule {space.name}", f"the trace does not fit: {first_line(error)}") from None
    return schedule


def trace_of(each: Space, values: Sequence[int]) -> Any:
    """The JSON trace with which `each`, all of whose decisions are choices, decides for `values`, in their order.

    Raises
    ------
    ValueError
        There are not as many decisions, or one has no such candidate.
    """
    if each.apply is None:
        raise ValueError(f"{each.name} has no decisions of its own")
    instructions, own = trace_to_json(each.scheduled(each.apply).trace)
    pairs = zip((index for index, _ in own), values, strict=True)
    return [instructions, [[index, instructions[index][2][0].index(value)] for index, value in pairs]]


def decided_alike(each: Space, trace: Any) -> Any:
    """The JSON trace with which `each` decides as `trace`, of a space that is called alike; None where it cannot."""
    if problem(trace):
        return None
    try:
        return trace_of(each, [trace[0][index][2][0][decision] for index, decision in trace[1]])
    except (IndexError, TypeError, ValueError):
        # It decides something else, or about other candidates.
        return None


def trace_to_json(trace: Trace) -> Any:
    """A schedule's trace as plain JSON values, the form in which logs keep it."""
    return plain(trace.as_json())


def decisions(trace: Any) -> dict[str, Any]:
    """The sampled decisions of a JSON trace, by position: ``{"0 SampleCategorical": 3, ...}``."""
    instructions, chosen = trace
    return {f"{index} {instructions[index][0]}": value for index, value in chosen}
