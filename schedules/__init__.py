"""Schedule spaces, one a file, and which of them serve a convolution.

In: a convolution, the zeros of its weight and a target. Out: the spaces to search, or one of them by its name.

A module of this package offers ``NAME``, ``TARGET`` (the target kind it is for) and
``spaces(spec, pattern, target) -> list[Space]``, which raises `NotApplicable`, with the rule that failed as a sentence,
where the schedule cannot serve a convolution. It may offer ``named(spec, pattern, target, variant) -> Space | None``,
which makes one space without the others, also such as are not offered to a search; ``why_not_here() -> str``, why this
machine cannot run its kernels, whatever the target; and ``TITLES``, what people call its spaces, by their names.
"""

from contextlib import suppress
from types import ModuleType

import numpy as np
from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import (
    bias_cpu,
    bias_cuda,
    csr_cpu,
    csr_cuda,
    data_cuda,
    dense_cpu,
    dense_cuda,
    dense_cudnn,
    folded_cpu,
    folded_cuda,
    folded_half_cuda,
    generated_cpu,
    generated_cuda,
    linear_cpu,
    linear_cuda,
    linear_tensor_cuda,
    plane_cuda,
    pooled_cuda,
    quad_cuda,
    slice_cuda,
    tensor_cuda,
    vector_cpu,
    vector_cuda,
    winograd_cpu,
)
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions
from tvm_sparse.scheduling.schedule_names import is_bias, must_be_asked_for
from tvm_sparse.scheduling.space import Decisions, NotApplicable, Space

# In the order in which they are tried. Sparse schedules first, then the dense baseline.
SCHEDULES: tuple[ModuleType, ...] = (
    bias_cpu,
    folded_cpu,
    generated_cpu,
    vector_cpu,
    csr_cpu,
    linear_cpu,
    winograd_cpu,
    dense_cpu,
    bias_cuda,
    folded_cuda,
    folded_half_cuda,
    generated_cuda,
    slice_cuda,
    plane_cuda,
    quad_cuda,
    vector_cuda,
    data_cuda,
    csr_cuda,
    linear_cuda,
    linear_tensor_cuda,
    pooled_cuda,
    tensor_cuda,
    dense_cudnn,
    dense_cuda,
)


def schedule_names(target: Target, every: bool = False) -> list[str]:
    """Schedules for `target`, in the order in which they are tried.

    With `every` those too that must be asked for by name.
    """
    names = [module.NAME for module in SCHEDULES if target.kind.name == module.TARGET]
    return [name for name in names if every or not must_be_asked_for(name)]


def why_not_here(name: str) -> str:
    """Why this machine cannot run kernels of a schedule, as a sentence; empty if nothing but the target counts."""
    checks = [each.why_not_here for each in SCHEDULES if name == each.NAME and hasattr(each, "why_not_here")]
    return str(checks[0]()) if checks else ""


def title_of(name: str) -> str:
    """What people call a space: ``cuDNN TF32`` for ``dense_cudnn:tf32``; most have no name but their own."""
    titles = (getattr(each, "TITLES", {}) for each in SCHEDULES)
    return next((each[name] for each in titles if name in each), name)


def spaces_of(
    spec: ConvSpec, pattern: SparsityPattern, target: Target, schedules: list[str] | None = None
) -> tuple[list[Space], dict[str, str]]:
    """Spaces for one convolution, and for each schedule that has none the reason, as a sentence.

    Without names those of all schedules that compute a convolution and nothing else; of a weight of zeros alone that
    of `bias_schedule`.
    """
    found: list[Space] = []
    reasons: dict[str, str] = {}
    names = _searched(pattern, target) if schedules is None else schedules
    for module in SCHEDULES:
        if target.kind.name != module.TARGET or module.NAME not in names:
            continue
        try:
            found += module.spaces(spec, pattern, target)
        except NotApplicable as reason:
            reasons[module.NAME] = str(reason)
    return found, reasons


def _searched(pattern: SparsityPattern, target: Target) -> list[str]:
    bias = None if pattern.nnz else bias_schedule(target)
    return schedule_names(target) if bias is None else [bias]


def bias_schedule(target: Target) -> str | None:
    """The schedule of layers whose weights are all zero; None where `target` has none."""
    return next(filter(is_bias, schedule_names(target, every=True)), None)


def find_space(name: str, spec: ConvSpec, pattern: SparsityPattern, target: Target) -> Space:
    """The space called `name`: a schedule, of which the first variant is meant, or ``schedule:variant``.

    Raises
    ------
    UsageError
        No schedule has that name, or it does not serve this convolution.
    """
    schedule, _, variant = name.partition(":")
    if schedule not in schedule_names(target, every=True):
        raise UsageError(
            f"schedule {name}", f"unknown for target {target.kind.name}", allowed=", ".join(schedule_names(target))
        )
    (module,) = (each for each in SCHEDULES if schedule == each.NAME)
    with suppress(NotApplicable):
        one = module.named(spec, pattern, target, variant) if hasattr(module, "named") else None
        if one is not None:
            return one
    found, reasons = spaces_of(spec, pattern, target, [schedule])
    for space in found:
        if variant in ("", space.variant):
            return space
    reason = reasons.get(schedule, f"it has no variant {variant!r}")
    hint = "see tvm-sparse inspect for those that do"
    raise UsageError(f"schedule {name}", f"does not serve convolution {spec.key}: {reason}", hint=hint)


def make_kernel(
    name: str, spec: ConvSpec, weight: np.ndarray, target: Target, decisions: Decisions | None = None
) -> Kernel:
    """The kernel that a schedule makes of a convolution and its weight.

    Parameters
    ----------
    name
        ``schedule`` or ``schedule:variant``.
    weight
        float32 (K, C / groups, R, S); zeros are folded away by folded schedules.
    decisions
        By name, or the trace of a generated space; None for the schedule's defaults.

    Raises
    ------
    UsageError
        The schedule does not exist or does not serve the convolution.
    BuildError
        The decisions do not fit this convolution.
    """
    space = find_space(name, spec, SparsityPattern.of(weight, spec.groups), target)
    return apply_decisions(space, weight, decisions)
