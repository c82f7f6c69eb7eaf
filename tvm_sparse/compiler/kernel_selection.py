"""Choose what computes each convolution of a model: the tuning log's best kernel, or dense.

Nothing is measured here. A sparse kernel is chosen where its record says that it beat the dense one in the same run,
by quartiles and with cold code where that was timed; everything else runs dense, and the reason is kept as a sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.target import Target

from tvm_sparse.compiler.reasons import why_dense, why_sparse
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.logs.ranking import Comparison, against_baseline
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import Match, TuningLog
from tvm_sparse.runtime.compiled_model import COLUMNS
from tvm_sparse.schedules import find_space, schedule_names, why_not_here
from tvm_sparse.scheduling.schedule_names import is_exact
from tvm_sparse.target.fingerprint import fingerprint_of

# A GPU's kernel for more non-zeros may take so many times as long as estimated.
MARGIN = 1.5


@dataclass(frozen=True)
class Decision:
    """What computes one layer, and why.

    `schedule` is the kernel's; `chosen` its decisions. Times are microseconds from the log, None where it has none.
    `record` is the log's; `transferred` if its kernel was not verified with this weight: it was made with another, or
    imported, or is a library's by default. `dense_record` is the log's best dense kernel, which stands in for one that
    turns out wrong.
    """

    layer: str
    density: float
    structure: str
    schedule: str
    dense_time_us: float | None
    time_us: float | None
    reason: str
    record: TuningRecord | None = None
    dense_record: TuningRecord | None = None
    transferred: bool = False

    @property
    def chosen(self) -> dict[str, Any] | list[Any] | None:
        """The decisions of the kernel; None for the schedule's defaults."""
        return self.record.chosen if self.record is not None else None

    def to_json(self) -> dict[str, Any]:
        """The row of the decision table."""
        return {column: getattr(self, column) for column in COLUMNS}


def decide(
    layers: Sequence[ConvLayer], target: Target, log: TuningLog | None, allow_tf32: bool = False
) -> list[Decision]:
    """One decision for each layer, from the log alone; see `Decision`.

    Kernels that round to TF32 are chosen, and must be beaten, only with `allow_tf32`; those that this machine cannot
    run are neither.
    """
    fingerprint = fingerprint_of(target)

    def is_allowed(schedule: str) -> bool:
        return (allow_tf32 or is_exact(schedule)) and not why_not_here(schedule.partition(":")[0])

    return [_decide(layer, target, fingerprint, log, is_allowed) for layer in layers]


def _decide(
    layer: ConvLayer,
    target: Target,
    fingerprint: dict[str, str],
    log: TuningLog | None,
    is_allowed: Callable[[str], bool],
) -> Decision:
    pattern = layer.pattern
    dense = log.dense(layer.spec, fingerprint, is_allowed) if log is not None else None
    schedule = dense.schedule if dense is not None else _default_dense(target)[0]
    dense_time_us = dense.time_us if dense is not None else None
    fallback = Decision(
        layer=layer.name,
        density=pattern.density,
        structure=pattern.structure,
        schedule=schedule,
        dense_time_us=dense_time_us,
        time_us=dense_time_us,
        reason="no tuning log was given",
        record=dense,
        dense_record=dense,
        transferred=_is_unverified(schedule, dense, target),
    )
    if log is None:
        return fallback
    match = log.lookup(layer.spec, pattern, fingerprint)
    if match is None:
        ignored = "; ".join(log.ignored(layer.spec, pattern, fingerprint))
        return replace(fallback, reason=ignored or "no record for this shape: run tvm-sparse tune")
    found = against_baseline(match.record, dense, is_allowed)
    if found is None:
        return replace(fallback, reason=f"dense was never timed beside {match.record.schedule}: run tvm-sparse tune")
    return _compare(match, found, pattern, target, fallback)


def _compare(match: Match, found: Comparison, pattern: SparsityPattern, target: Target, dense: Decision) -> Decision:
    """The matching record's kernel where it beats dense, else `dense`."""
    record = match.record
    more = max(1.0, pattern.nnz / max(record.pattern.nnz, 1))
    found = replace(found, own=found.own.times(_growth(record, pattern, target, more)))
    time_us, baseline_us = found.own.median, found.baseline.median
    if found.verdict != "faster":
        return replace(dense, dense_time_us=baseline_us, time_us=baseline_us, reason=why_dense(found, more))
    return replace(
        dense,
        schedule=record.schedule,
        dense_time_us=baseline_us,
        time_us=time_us,
        reason=why_sparse(record.schedule, found, match.note),
        record=record,
        transferred=match.how != "values" or _is_unverified(record.schedule, record, target),
    )


def _growth(record: TuningRecord, pattern: SparsityPattern, target: Target, more: float) -> float:
    """How many times as long as `record` a kernel with its decisions may take, with `more` times the non-zeros.

    On a CPU it is at most in proportion. On a GPU code that leaves a cache costs more, and a kernel that memory bounds
    hardly anything: of 62 kernels with decisions made for fewer non-zeros (docs/results/table2-h200.md) 23 took longer
    than in proportion, up to 2.3 times, but only three longer than this, by 10% at most.
    """
    if more <= 1 or target.kind.name != "cuda":
        return more
    before_us, after_us = (_estimate_us(record, each, target) for each in (record.pattern, pattern))
    if before_us is None or after_us is None:
        return more
    return max(1.0, after_us / before_us) * min(more, MARGIN)


def _estimate_us(record: TuningRecord, pattern: SparsityPattern, target: Target) -> float | None:
    """Estimated time of a record's decisions with another pattern of zeros, if there is an estimate."""
    try:
        space = find_space(record.schedule, record.spec, pattern, target)
        schedule = space.scheduled(record.chosen)
    except (UsageError, BuildError):
        return None
    return space.estimate(schedule)


def _default_dense(target: Target) -> list[str]:
    """Dense schedules that need no record, in the order in which they are tried; the last one serves everything."""
    names = schedule_names(target)
    dense = [name for name in names if name.startswith("dense") and not why_not_here(name)]
    if not dense:
        found = ", ".join(names) or "none"
        raise UsageError(f"target {target.kind.name}", "has no dense schedule", found, "one named dense")
    return dense


def can_be_dense(decision: Decision, target: Target) -> bool:
    """Whether `to_dense` has something left to turn it into."""
    return decision.record is not None or decision.schedule in _default_dense(target)[:-1]


def to_dense(decision: Decision, target: Target, reason: str) -> Decision:
    """`decision` turned into the log's dense kernel, or a default one if that is what it was already."""
    record, defaults = decision.dense_record, _default_dense(target)
    if decision.record is None and decision.schedule in defaults:
        record, defaults = None, defaults[defaults.index(decision.schedule) + 1 :]
    elif decision.record is record:
        record = None
    schedule = record.schedule if record is not None else defaults[0]
    return replace(
        decision,
        schedule=schedule,
        time_us=decision.dense_time_us,
        reason=f"dense, because {reason}",
        record=record,
        transferred=_is_unverified(schedule, record, target),
    )


def _is_unverified(schedule: str, record: TuningRecord | None, target: Target) -> bool:
    """Whether nobody has verified it with any weight; of the defaults only a library's may not serve a convolution."""
    return record.error is None if record is not None else schedule in _default_dense(target)[:-1]


def all_dense(decisions: Sequence[Decision], target: Target, reason: str) -> list[Decision]:
    """`decisions` where the log's best dense kernel, which multiplies by zeros too, replaces each sparse one."""
    return [d if d.schedule.startswith("dense") else to_dense(d, target, reason) for d in decisions]
