"""Let a layer compute the 2x2 max pool behind it too (`schedules.pooled_cuda`), where that is faster."""

import math
from dataclasses import replace

from tvm.target import Target

from tvm_sparse.compiler.plan import reasons
from tvm_sparse.compiler.plan.choice import Predicted, Recorded
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.kernel_growth import growth
from tvm_sparse.compiler.plan.kernel_selection import from_log
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.conv.pooled import pooled_shape
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.logs.best_match import Match
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules import folded_cuda, pooled_cuda
from tvm_sparse.scheduling.family import schedule_of
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu import GpuInfo, gpu_info


def with_pools(plan: Plan, log: TuningLog | None) -> Plan:
    """`plan`, where layers with such a pool behind them have kernels that compute it, if that is faster.

    By the log's records of such kernels; without one a folded kernel gives way to one that pools, by its default
    decisions, where the output exceeds the level-2 cache, as it then is written to memory and read again.
    """
    if plan.target.kind.name != pooled_cuda.FAMILY.target:
        return plan
    return plan.with_decisions(
        _pooled(layer, decision, plan.target, log) if layer.has_pool else decision for layer, decision in plan.pairs
    )


def pooled_space(layer: ConvLayer, target: Target) -> Space | None:
    """The space of kernels that compute a layer and the pool behind it; None where they promise nothing.

    That is where the output fits the level-2 cache, in which the pool finds it.
    """
    is_on_gpu = target.kind.name == pooled_cuda.FAMILY.target
    if not is_on_gpu or not layer.has_pool or layer.spec.output_bytes <= gpu_info(target).level_2_bytes:
        return None
    found, _ = pooled_cuda.FAMILY.offered(layer.spec, layer.pattern, target)
    return found[0] if found else None


def _pooled(layer: ConvLayer, decision: Decision, target: Target, log: TuningLog | None) -> Decision:
    match = log.pooled(layer.spec, layer.pattern, fingerprint_of(target)) if log is not None else None
    alone_us = decision.choice.expected_us
    if match is not None and alone_us is not None:
        return _by_record(layer, decision, match, alone_us, target, from_log(log, match.record))
    space = pooled_space(layer, target) if schedule_of(decision.schedule) == folded_cuda.NAME else None
    if space is None:
        return decision
    reason = reasons.pools_as_predicted(space.name, decision.schedule)
    return replace(decision, choice=Predicted(space.name, space.starts()[0], space.estimate_us), reason=reason)


def _by_record(
    layer: ConvLayer, decision: Decision, match: Match, alone_us: float, target: Target, place: str
) -> Decision:
    """The kernel of a record, where it is expected to be faster than the layer's own, of `alone_us`, and a pool."""
    record = match.record
    time_us = record.time_us * growth(record, layer.pattern, target)
    times = (alone_us + _pool_us(layer.spec, gpu_info(target))) / time_us
    if times < 1:
        return decision
    reason = reasons.pools_faster(record.schedule, times, decision.schedule, match.note + place)
    is_verified = match.how == "values" and record.error is not None
    return replace(decision, choice=Recorded(record, time_us, is_verified), reason=reason)


def _pool_us(spec: ConvSpec, gpu: GpuInfo) -> float:
    """What a max pool takes that reads the output and writes its own."""
    written = STORAGE[spec.dtype].size_bytes * math.prod(pooled_shape(spec))
    return (spec.output_bytes + written) / gpu.dram_bytes_s * 1e6
