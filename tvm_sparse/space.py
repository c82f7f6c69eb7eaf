"""Which schedule spaces serve a convolution, and making a kernel from a schedule name and a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from tvm import s_tir, tirx
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tvm_sparse.conv import ConvSpec
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.fold import bind_weight
from tvm_sparse.pattern import SparsityPattern
from tvm_sparse.plain import plain
from tvm_sparse.schedules import csr_cpu, csr_cuda, dense_cpu, dense_cuda, folded_cpu, folded_cuda, generated_cpu
from tvm_sparse.schedules.base import NotApplicable, Space
from tvm_sparse.trace import problem

# In the order in which they are tried. Sparse schedules first, then the dense rival.
SCHEDULES: tuple[ModuleType, ...] = (
    folded_cpu,
    generated_cpu,
    csr_cpu,
    dense_cpu,
    folded_cuda,
    csr_cuda,
    dense_cuda,
)


@dataclass(frozen=True)
class Kernel:
    """A scheduled function and the arrays made from its weight.

    `func` takes x (N, C, H, W), `constants`, [bias (K,)], [residual (N, K, OH, OW)] and writes y (N, K, OH, OW). A
    folded kernel has no constants: its weight is an attribute that `lowering` folds into the code.
    """

    func: tirx.PrimFunc
    constants: tuple[np.ndarray, ...] = ()


def names(target: Target) -> list[str]:
    """Schedules for `target`, in the order in which they are tried."""
    return [module.NAME for module in SCHEDULES if target.kind.name == module.TARGET]


def spaces(
    spec: ConvSpec, pattern: SparsityPattern, target: Target, schedules: list[str] | None = None
) -> tuple[list[Space], dict[str, str]]:
    """Spaces for one convolution, and for each schedule that has none the reason, as a sentence."""
    found: list[Space] = []
    reasons: dict[str, str] = {}
    for module in SCHEDULES:
        if target.kind.name != module.TARGET or (schedules is not None and module.NAME not in schedules):
            continue
        try:
            found += module.spaces(spec, pattern, target)
        except NotApplicable as reason:
            reasons[module.NAME] = str(reason)
    return found, reasons


def find(name: str, spec: ConvSpec, pattern: SparsityPattern, target: Target) -> Space:
    """The space called `name`: a schedule, of which the first variant is meant, or ``schedule:variant``.

    Raises
    ------
    UsageError
        No schedule has that name, or it does not serve this convolution.
    """
    schedule, _, variant = name.partition(":")
    if schedule not in names(target):
        raise UsageError(f"schedule {name}", f"unknown for target {target.kind.name}", allowed=", ".join(names(target)))
    (module,) = (each for each in SCHEDULES if schedule == each.NAME)
    one = module.named(spec, pattern, target, variant) if hasattr(module, "named") else None
    if one is not None:
        return one
    found, reasons = spaces(spec, pattern, target, [schedule])
    for space in found:
        if variant in ("", space.variant):
            return space
    reason = reasons.get(schedule, f"it has no variant {variant!r}")
    hint = "see tvm-sparse inspect for those that do"
    raise UsageError(f"schedule {name}", f"does not serve convolution {spec.key}: {reason}", hint=hint)


def kernel(name: str, spec: ConvSpec, weight: np.ndarray, target: Target, trace: Any = None) -> Kernel:
    """The kernel that a schedule makes of a convolution and its weight.

    Parameters
    ----------
    name
        ``schedule`` or ``schedule:variant``.
    weight
        float32 (K, C / groups, R, S); zeros are folded away by folded schedules.
    trace
        Decisions as `trace_to_json` gives them; None for the schedule's defaults.

    Raises
    ------
    UsageError
        The schedule does not exist or does not serve the convolution.
    BuildError
        The trace does not fit this convolution.
    """
    space = find(name, spec, SparsityPattern.of(weight), target)
    return apply_trace(space, weight, trace)


def apply_trace(space: Space, weight: np.ndarray, trace: Any = None) -> Kernel:
    """Schedule `space` by `trace` and bind `weight` to it; see `kernel`."""
    if trace is not None:
        schedule = replay(space, trace)
    elif space.apply is not None:
        schedule = space.scheduled(space.apply)
    else:
        raise UsageError(f"schedule {space.name}", "has no default decisions", hint="give a trace from a tuning log")
    if space.generated is not None:
        space.generated.finish(schedule)
    func = schedule.mod["main"]
    if space.fold:
        func = bind_weight(func, 1, weight)
    # Scheduled: DLight leaves it alone. Opaque (kind 8): Relax does not fuse it with its neighbours.
    func = func.with_attr("tirx.is_scheduled", True).with_attr("op_pattern", 8)
    return Kernel(func, space.constants(weight))


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
        raise BuildError(f"schedule {space.name}", f"the trace does not fit: {_first_line(error)}") from None
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


def _first_line(error: Exception) -> str:
    lines: Iterator[str] = (line.strip() for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__)
