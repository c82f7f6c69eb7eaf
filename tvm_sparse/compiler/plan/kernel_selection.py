"""Choose what computes each convolution of a model: the tuning log's best kernel, a predicted one, or dense.

Nothing is measured here. A sparse kernel is chosen where its record says that it beat the dense one in the same run,
by quartiles and with cold code where that was timed. A layer without a record of this machine gets the decisions of a
near one, where they won there, or the default kernel that `predict` expects to win; both are marked as predicted, and
verified before they are used. A layer of zeros alone is its bias. Everything else runs dense, and the reason is kept.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from tvm.target import Target

from tvm_sparse.compiler.plan import reasons
from tvm_sparse.compiler.plan.choice import Choice, Default, Predicted, Recorded, recorded_or_default
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.dense_fallback import default_of
from tvm_sparse.compiler.plan.kernel_growth import Growths
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.predict import DENSE, Prediction, cpu_times_us
from tvm_sparse.compiler.plan.prediction_cache import remembered
from tvm_sparse.compiler.plan.reasons import Reason
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.logs.best_match import Match
from tvm_sparse.logs.known_logs import is_shipped, origin
from tvm_sparse.logs.matching import mismatch
from tvm_sparse.logs.ranking import Comparison, against_baseline
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import bias_schedule, family_of, is_exact
from tvm_sparse.scheduling.cpu.byte_space import fours_in
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit
from tvm_sparse.target.fingerprint import fingerprint_of

# How many times as fast as its baseline a kernel was on another machine, at least, where it is taken on this one; and
# one of far fewer non-zeros, in proportion to them.
NEAR_MARGIN, FAR_MARGIN = 1.25, 2.5
# How many times as fast as what won in a shipped log a schedule should be that it did not try, by estimates of both,
# which are within 10% for most layers. One thread takes ResNet-50 with 90% zeros 51.7 ms in code for AVX2 by records of
# folded kernels alone, and 27.1 as predicted.
UNTRIED_MARGIN = 1.25
# How many times as fast a kernel that rounds as TF32 does should be as what was timed.
ROUNDED_MARGIN = 1.15
# On a CPU records of a layer with so many times fewer non-zeros say less than a prediction: with 70% zeros VGG16 takes
# 134 ms by those of 90%, and 71 without (docs/lab/search.md, "What do records of other densities say?").
FAR = 1.5


def select(plan: Plan, log: TuningLog | None, allow_tf32: bool, predict: bool) -> Plan:
    """`plan` as `decide` decides about each layer alone."""
    return plan.with_decisions(decide(plan.layers, plan.target, log, allow_tf32, predict))


def decide(
    layers: Sequence[ConvLayer], target: Target, log: TuningLog | None, allow_tf32: bool = False, predict: bool = False
) -> list[Decision]:
    """One decision for each layer, from the log, or with `predict`, where that has no record, predicted.

    Kernels that round to TF32 are chosen, and must be beaten, only with `allow_tf32`; those that this machine cannot
    run are neither.
    """
    fingerprint = fingerprint_of(target)

    def is_allowed(schedule: str) -> bool:
        return (allow_tf32 or is_exact(schedule)) and not family_of(schedule).why_not_here()

    growth_of, bias = Growths(target), bias_schedule(target)
    farthest = FAR if predict and target.kind.name == "llvm" else math.inf
    guess = cache(lambda spec, pattern: remembered(spec, pattern, target, allow_tf32))

    def decision(layer: ConvLayer) -> Decision:
        dense = _dense(layer, target, fingerprint, log, is_allowed)
        found = _by_log(layer, dense, fingerprint, log, is_allowed, growth_of, farthest)
        if bias is not None and not layer.pattern.nnz:
            known = dense if isinstance(found, Reason) else found
            return replace(known, choice=Default(bias), reason=reasons.ALL_ZERO)
        # Where the zeros are changes no prediction.
        counts = replace(layer.pattern, mask_digest="", value_digest="")
        if not isinstance(found, Reason):
            if predict and allow_tf32 and target.kind.name == "cuda":
                return _rounded(found, guess(layer.spec, counts)) or found
            is_open = predict and target.kind.name == "llvm" and _is_shipped(found, log)
            return (_untried(found, guess(layer.spec, counts), layer, target, log) if is_open else None) or found
        dense = replace(dense, reason=found)
        if not predict:
            return dense
        # What one thread computes fastest is cut badly for many: ResNet-50 with 90% zeros takes sixteen 6.5 ms by such
        # records and 5.6 without (docs/lab/threads.md).
        near = log.near(layer.spec, layer.pattern, fingerprint, same_threads=True) if log is not None else None
        if near is not None and target.kind.name == "llvm" and mismatch(near.record, fingerprint):
            # The other machine may not have tried the schedule that is the best here.
            promised = guess(layer.spec, counts)
            near = near if promised is None or family_of(promised.schedule) is near.record.family else None
        elsewhere = _from_near(layer, dense, near, log, is_allowed, growth_of)
        return elsewhere or _as_predicted(dense, guess(layer.spec, counts))

    return [decision(layer) for layer in layers]


def _dense(
    layer: ConvLayer,
    target: Target,
    fingerprint: dict[str, str],
    log: TuningLog | None,
    is_allowed: Callable[[str], bool],
) -> Decision:
    """The layer by its best dense kernel, for no reason yet."""
    record = log.dense(layer.spec, fingerprint, is_allowed) if log is not None else None
    time_us = record.time_us if record is not None else None
    return Decision(
        layer=layer.name,
        density=layer.model_pattern.density,
        structure=layer.model_pattern.structure,
        choice=recorded_or_default(default_of(layer.spec, target, is_allowed), record, time_us),
        reason=reasons.NO_LOG,
        dense_time_us=time_us,
        dense_record=record,
        dtype=layer.spec.dtype,
    )


def _by_log(
    layer: ConvLayer,
    dense: Decision,
    fingerprint: dict[str, str],
    log: TuningLog | None,
    is_allowed: Callable[[str], bool],
    growth_of: Growths,
    farthest: float,
) -> Decision | Reason:
    """What the log's records of this machine decide, or why they decide nothing."""
    if log is None:
        return reasons.NO_LOG
    pattern = layer.pattern
    match = log.lookup(layer.spec, pattern, fingerprint, growth=lambda record: growth_of(record, pattern))
    if match is None:
        unfit = log.lookup(layer.spec, pattern, fingerprint)
        if unfit is not None:
            return reasons.does_not_fit(unfit.record)
        return reasons.no_record(log.ignored(layer.spec, pattern, fingerprint))
    if pattern.nnz > farthest * max(match.record.pattern.nnz, 1):
        return reasons.too_far(match.record)
    found = against_baseline(match.record, dense.record, is_allowed)
    if found is None:
        return reasons.not_compared(match.record)
    note = match.note + from_log(log, match.record)

    def best_dense(schedule: str) -> TuningRecord | None:
        return log.dense(layer.spec, fingerprint, lambda name: name == schedule)

    found = replace(found, own=found.own.times(growth_of(match.record, pattern)))
    return _compare(replace(match, note=note), found, pattern, dense, best_dense)


def from_log(log: TuningLog | None, record: TuningRecord) -> str:
    """Where a record is from, unless it is the log that was named."""
    return f", {origin(path)}" if log is not None and (path := log.path_of(record)) not in log.named else ""


def _from_near(
    layer: ConvLayer,
    dense: Decision,
    match: Match | None,
    log: TuningLog | None,
    is_allowed: Callable[[str], bool],
    growth_of: Growths,
) -> Decision | None:
    """The decisions that won with another epilogue, or on another machine with vectors like these; None: none are.

    They must be expected to win with as many non-zeros as the layer has, too.
    """
    found = against_baseline(match.record, None, is_allowed) if match is not None else None
    if match is None or found is None or found.verdict != "faster":
        return None
    record, times = match.record, found.baseline.median / found.own.median
    growth = growth_of(record, layer.pattern)
    if times < (NEAR_MARGIN if growth <= FAR else FAR_MARGIN) * growth:
        return None
    place = f"on {record.fingerprint['arch']}"
    if record.spec != layer.spec:
        place = "with another epilogue"
    elif record.fingerprint["kind"] != "cuda":
        place += f" with {record.fingerprint['threads']} thread(s)"
    if (density := f"{record.pattern.density:.2g}") != f"{layer.pattern.density:.2g}":
        place += f" at density {density}"
    reason = reasons.was_faster(record.schedule, found, place, from_log(log, record))
    return replace(dense, choice=Recorded(record, None, is_verified=False), reason=reason)


def _as_predicted(dense: Decision, guess: Prediction | None) -> Decision:
    if guess is None:
        return dense
    choice = Predicted(guess.schedule, guess.decisions, guess.time_us, speedup=guess.speedup)
    return replace(dense, choice=choice, reason=reasons.predicted(guess.schedule, guess.speedup))


def _is_shipped(found: Decision, log: TuningLog | None) -> bool:
    """Whether a shipped log decided."""
    return log is not None and found.record is not None and is_shipped(log.path_of(found.record))


def _rounded(found: Decision, rival: Prediction | None) -> Decision | None:
    """`found` by `rival` where that rounds as TF32 does, as no search tries, and should be faster; None elsewhere."""
    known_us, rival_us = found.choice.expected_us, rival.time_us if rival is not None else None
    if rival is None or known_us is None or rival_us is None or is_exact(rival.schedule):
        return None
    return _as_predicted(found, rival) if known_us > ROUNDED_MARGIN * rival_us else None


def _untried(
    found: Decision, rival: Prediction | None, layer: ConvLayer, target: Target, log: TuningLog | None
) -> Decision | None:
    """`layer` by `rival`, where a shipped log decided `found` that knows no kernel of that schedule; None: it stays so.

    It must be estimated to be `UNTRIED_MARGIN` times as fast as the schedule that won.
    """
    if rival is None or log is None or log.has_family(layer.spec, fingerprint_of(target), rival.schedule):
        return None
    family = family_of(found.schedule)
    pattern = layer.pattern
    times_us = cpu_times_us(layer.spec, pattern.nnz, target, pattern.vector, fours_in(pattern, ByteUnit.of(target)))
    won_us = times_us.get(family.name, times_us[DENSE] if family.is_dense else 0.0)
    return _as_predicted(found, rival) if won_us > UNTRIED_MARGIN * times_us.get(rival.schedule, math.inf) else None


def _compare(
    match: Match,
    found: Comparison,
    pattern: SparsityPattern,
    dense: Decision,
    best_dense: Callable[[str], TuningRecord | None],
) -> Decision:
    """The matching record's kernel where it beats its baseline, else `dense`, or that baseline where it is another.

    `best_dense` gives the log's record of a dense schedule.
    """
    record, baseline_us = match.record, found.baseline.median
    more = max(1.0, pattern.nnz / max(record.pattern.nnz, 1))
    choice: Choice
    if found.verdict == "faster":
        is_verified = match.how == "values" and record.error is not None
        choice = Recorded(record, found.own.median, is_verified)
        reason = reasons.faster(record.schedule, found, match.note)
    else:
        own = dense.record if dense.schedule == found.name else best_dense(found.name)
        choice = recorded_or_default(found.name, own, baseline_us)
        reason = reasons.not_faster(found, more)
    return replace(dense, choice=choice, reason=reason, dense_time_us=baseline_us)
