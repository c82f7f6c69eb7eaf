"""Families and spaces by their names: ``schedule``, of which the first variant is meant, or ``schedule:variant``."""

from contextlib import suppress

import numpy as np
from tvm.target import Target

from tvm_sparse.conv.error_bounds import ROUNDED, WINOGRAD
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display.words import DENSE
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import FAMILIES
from tvm_sparse.scheduling.family import KernelFamily, precision_in_words, schedule_of
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions
from tvm_sparse.scheduling.space import Decisions, NotApplicable, Space

# What is known of a name that a record of another version has.
UNKNOWN = KernelFamily("", "", lambda *_: [])
_BY_NAME = {each.name: each for each in FAMILIES}


def family_of(name: str) -> KernelFamily:
    """The family of a schedule or a space; `UNKNOWN` where this version has none of that name."""
    return _BY_NAME.get(schedule_of(name), UNKNOWN)


def arithmetic_of(name: str) -> str:
    """How kernels of a space compute, as `conv.reference` calls it: what bound they are held to."""
    return family_of(name).arithmetic_of(name.partition(":")[2])


def is_exact(name: str) -> bool:
    """Whether kernels compute to float32's accuracy, however tensors are stored."""
    return arithmetic_of(name) not in ROUNDED


def precision_of(name: str, dtype: str) -> str:
    """What kernels compute in and how their tensors are stored, in words for a decision table."""
    return precision_in_words(arithmetic_of(name), dtype)


def title_of(name: str) -> str:
    """What people call a space: ``cuDNN TF32`` for ``dense_cudnn:tf32``; most have no name but their own."""
    return family_of(name).titles.get(name.partition(":")[2], name)


def word_of(name: str, structure: str) -> str:
    """What a space does with a weight of such a structure, in a word or two for those who know none of the spaces."""
    family = family_of(name)
    if family.of_zeros:
        return "bias alone"
    if family.is_dense or structure == "dense" or family.arithmetic == WINOGRAD:
        return DENSE
    return "folded" if family.is_folded else "sparse data"


def schedule_names(target: Target, every: bool = False) -> list[str]:
    """Schedules for `target`, in the order in which they are tried.

    With `every` those too that must be asked for by name.
    """
    return [each.name for each in _families(target) if every or not each.asked_for_only]


def _families(target: Target) -> list[KernelFamily]:
    return [each for each in FAMILIES if each.target == target.kind.name]


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
    for family in _families(target):
        if family.name not in names:
            continue
        spaces, reason = family.offered(spec, pattern, target)
        found += spaces
        if reason:
            reasons[family.name] = reason
    return found, reasons


def _searched(pattern: SparsityPattern, target: Target) -> list[str]:
    bias = None if pattern.nnz else bias_schedule(target)
    return schedule_names(target) if bias is None else [bias]


def bias_schedule(target: Target) -> str | None:
    """The schedule of layers whose weights are all zero; None where `target` has none."""
    return next((each.name for each in _families(target) if each.of_zeros), None)


def find_space(name: str, spec: ConvSpec, pattern: SparsityPattern, target: Target) -> Space:
    """The space called `name`; UsageError where no schedule has that name, or it does not serve this convolution."""
    schedule, _, variant = name.partition(":")
    family = family_of(schedule)
    if family.target != target.kind.name:
        raise UsageError(
            f"schedule {name}", f"unknown for target {target.kind.name}", allowed=", ".join(schedule_names(target))
        )
    with suppress(NotApplicable):
        is_read = spec.volumes is None or family.reads_volumes(spec, None) == spec
        one = family.named(spec, pattern, target, variant) if family.named and is_read else None
        if one is not None:
            return one
    found, reason = family.offered(spec, pattern, target)
    for space in found:
        if variant in ("", space.variant):
            return space
    reason = reason or f"it has no variant {variant!r}"
    hint = "see tvm-sparse inspect for those that do"
    raise UsageError(f"schedule {name}", f"does not serve convolution {spec.key}: {reason}", hint=hint)


def make_kernel(
    name: str, spec: ConvSpec, weight: np.ndarray, target: Target, decisions: Decisions | None = None
) -> Kernel:
    """The kernel that a schedule makes of a convolution and its weight.

    UsageError where the schedule does not exist or does not serve the convolution. BuildError where the decisions do
    not fit this convolution.

    * `name`: ``schedule`` or ``schedule:variant``.
    * `weight`: float32 (K, C / groups, R, S); zeros are folded away by folded schedules.
    * `decisions`: by name, or the trace of a generated space; None for the schedule's defaults.
    """
    space = find_space(name, spec, SparsityPattern.of(weight, spec.groups), target)
    return apply_decisions(space, weight, decisions)
