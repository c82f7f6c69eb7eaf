"""Choose which layers cuDNN computes in NHWC, for the fastest model instead of the fastest layers.

On tensor cores cuDNN computes in NHWC. A layer alone pays for its tensors' way there and back, which is often as long
as its arithmetic; next to others like it, it does not (`keep_nhwc`). Which layers are worth it together is a minimum
cut: each layer pays its time on the side it is on, each tensor that is read on the other side a conversion, once. It is
exact, as no layer gains by standing apart from its neighbours (Kolmogorov and Zabih, "What energy functions can be
minimized via graph cuts?", 2004).
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tvm.target import Target

from tvm_sparse.compiler.layouts.keep_nhwc import pool_of
from tvm_sparse.compiler.layouts.layout_cut import LayoutCut, has_maps
from tvm_sparse.compiler.plan import reasons
from tvm_sparse.compiler.plan.choice import Choice, Predicted, Recorded
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.staged_input import channel_group, writes_groups
from tvm_sparse.conv.storage import STORAGE, is_half
from tvm_sparse.cudnn.plan import PRECOMP
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.passes.relax_graph import is_call
from tvm_sparse.logs.ranking import fastest, fastest_unconverted
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules import dense_cudnn, depthwise_cuda, first_cuda
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.cuda.cudnn_time import (
    conversions_us,
    cudnn_alone_us,
    cudnn_half_us,
    layout_change_us,
    tensor_core_floor_us,
)
from tvm_sparse.scheduling.cuda.depthwise.space import DepthwiseSpace
from tvm_sparse.scheduling.cuda.first.space import FirstSpace
from tvm_sparse.scheduling.family import HALF_VARIANTS, TF32_VARIANT, schedule_of
from tvm_sparse.scheduling.space import Decisions
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NHWC: dict[str, Any] = {"layout": "nhwc", "algorithm": PRECOMP, "epilogue": "fused"}
STAGED = {**NHWC, "layout": "nhwc_staged"}
NCHW = "nchw"
# In NHWC a layer that is faster in NCHW takes so many times what is left of its time there without conversions: the
# median of 17 such layers at batch 8 and 64 on an H200, between 1 and 1.9 times for 15 of them. Where both were timed
# the faster one may be all that a log kept.
_SLOWER = 1.4
# How many times as long an image takes in half precision, in either layout: 2.4 to 3.9 for three first layers.
_STAGED_TIMES = 3
# What a pool, or a pass that clips, takes at least.
_LAUNCH_US = 2.0
# With a residual that is read in NHWC, how many times what memory and tensor cores allow: 1.4 to 3.6 for seven layers.
_RESIDUAL = 2
# Of maps that are written once for each tap in depth, the share of DRAM's bandwidth: 57 us for 77 MB (an H200).
_DEPTHS_SHARE = 0.28


def in_nhwc(plan: Plan, log: TuningLog | None, allow_tf32: bool) -> Plan:
    """`plan` with layers in NHWC that are faster so together."""
    target = plan.target
    if target.kind.name != "cuda" or dense_cudnn.why_not_here():
        return plan
    options = [_best_option(plan, index, log, allow_tf32) for index in range(len(plan.layers))]
    if not any(options):
        return plan
    costs_us = [None if each is None else (each.nchw_us, each.nhwc_us) for each in options]
    staged = [index for index, each in enumerate(options) if each is not None and each.is_staged]
    chosen = LayoutCut(plan.prepared, costs_us, partial(layout_change_us, gpu=gpu_info(target)), staged).layers
    return plan.with_decisions(
        option.decision if option is not None and index in chosen else decision
        for index, (option, decision) in enumerate(zip(options, plan.decisions, strict=True))
    )


@dataclass(frozen=True)
class _Option:
    """A layer in NHWC, `nhwc_us` without conversions, instead of `nchw_us` as it was decided."""

    decision: Decision
    nhwc_us: float
    nchw_us: float

    @property
    def is_staged(self) -> bool:
        """Whether its input is written anew, from either layout."""
        decisions = self.decision.chosen
        if schedule_of(self.decision.schedule) == first_cuda.NAME:
            return True
        return isinstance(decisions, dict) and decisions.get("layout") == STAGED["layout"]


def _best_option(plan: Plan, index: int, log: TuningLog | None, allow_tf32: bool) -> _Option | None:
    """The one that takes least in NHWC."""
    layer, decision = plan.layers[index], plan.decisions[index]
    if not has_maps(plan.prepared.groups[index]):
        return None
    unclipped = layer.spec.is_clipped and _is_clipped_by_reader(plan, index)
    found = [_option(layer, decision, plan.target, log, allow_tf32, unclipped), _first_option(plan, index)]
    found.append(_depthwise_option(layer, decision, plan.target))
    return min((each for each in found if each is not None), key=lambda each: each.nhwc_us, default=None)


def _first_option(plan: Plan, index: int) -> _Option | None:
    """A kernel for an image and the max pool behind it, whose time it does not take; None where it serves neither."""
    layer, decision, gpu = plan.layers[index], plan.decisions[index], gpu_info(plan.target)
    spec, user = layer.spec, plan.prepared.graph.only_user(plan.prepared.groups[index].result)
    pool = pool_of(user[1]) if user is not None else None
    found, _ = first_cuda.FAMILY.offered(spec, layer.pattern, plan.target) if pool is not None else ([], "")
    pooled = FirstSpace(first_cuda.NAME, spec, gpu, pool, nhwc=True).ranked if found else []
    if not pooled or not layer.pattern.nnz:
        return None
    (alone, *_), (pooled_us, _) = found, pooled[0]
    pool_us = _LAUNCH_US + spec.output_bytes / gpu.dram_bytes_s * 1e6
    nchw_us = decision.choice.expected_us or _image_times(spec) * cudnn_alone_us(spec, gpu)
    reason = reasons.in_nhwc(alone.name, pooled_us, False, decision.schedule, nchw_us + pool_us)
    choice = Predicted(alone.name, alone.starts()[0], time_us=pooled_us)
    return _Option(replace(decision, choice=choice, reason=reason), max(0.0, pooled_us - pool_us), nchw_us)


def _depthwise_option(layer: ConvLayer, decision: Decision, target: Target) -> _Option | None:
    """A kernel for channels that lie side by side; None where it does not serve the layer."""
    spec, gpu = layer.spec, gpu_info(target)
    if depthwise_cuda.why_not_served(spec, gpu) or not layer.pattern.nnz:
        return None
    space = DepthwiseSpace(depthwise_cuda.NAME, spec, gpu, nhwc=True)
    (nhwc_us, _), *_ = space.ranked
    # A compiled kernel, which nobody has timed, moves as many bytes.
    nchw_us = decision.choice.expected_us or nhwc_us
    reason = reasons.in_nhwc(space.name, nhwc_us, False, decision.schedule, nchw_us)
    choice = Predicted(space.name, space.starts()[0], time_us=nhwc_us)
    return _Option(replace(decision, choice=choice, reason=reason), nhwc_us, nchw_us)


def _is_clipped_by_reader(plan: Plan, index: int) -> bool:
    """Whether a layer's outputs are read by a depthwise layer alone, whose kernel in NHWC clips what it reads."""
    graph, result = plan.prepared.graph, plan.prepared.groups[index].result
    user = graph.only_user(result)
    if user is not None and is_call(user[1], "relax.astype"):
        user = graph.only_user(user[0])
    pairs = zip(plan.layers, plan.prepared.groups, strict=True)
    readers = [layer.spec for layer, group in pairs if result.same_as(group.data)]
    gpu = gpu_info(plan.target)
    return user is not None and len(readers) == 1 and not depthwise_cuda.why_not_served(readers[0], gpu)


def _option(
    layer: ConvLayer,
    decision: Decision,
    target: Target,
    log: TuningLog | None,
    allow_tf32: bool,
    unclipped: bool = False,
) -> _Option | None:
    """None where cuDNN is not allowed to use tensor cores, cannot, or nothing says how long it takes.

    What is `unclipped` does without the pass over its outputs in which cuDNN clips them.
    """
    spec, gpu = dense_cudnn.in_nhwc(layer.spec, layer.volumes), gpu_info(target)
    if not (allow_tf32 or is_half(spec.dtype)) or gpu.compute_capability < 80 or not writes_groups(spec):
        return None
    schedule = f"{dense_cudnn.NAME}:{HALF_VARIANTS.get(spec.dtype, TF32_VARIANT)}"
    clips_us = 0.0
    if unclipped:
        clips_us = _LAUNCH_US + 2 * spec.output_bytes / gpu.dram_bytes_s * 1e6
        spec = replace(spec, relu_max=math.inf)
    records = log.of_schedule(layer.spec, fingerprint_of(target), schedule) if log is not None else []
    timed = [each for each in records if each.decisions.get("layout") in (STAGED["layout"], NHWC["layout"])]
    in_nchw = [each for each in records if each.decisions.get("layout") == NCHW]
    least_us = cudnn_half_us(spec, gpu) if is_half(spec.dtype) else tensor_core_floor_us(spec, gpu)
    least_us *= _image_times(spec)
    record = fastest_unconverted(timed) or (fastest(timed) if timed else None)
    if record is not None:
        nhwc_us = _without_conversions_us(spec, record)
        if clips_us or record.unconverted_time_us is None:
            nhwc_us = max(nhwc_us - clips_us, least_us)
    elif in_nchw:
        nhwc_us = max(_by_time_in_nchw(spec, fastest(in_nchw), gpu), least_us)
    elif decision.record is None:
        nhwc_us = max(cudnn_alone_us(spec, gpu) - conversions_us(spec, gpu), least_us)
    else:
        return None
    nchw_us = decision.choice.expected_us
    if nchw_us is None and family_of(decision.schedule).is_library:
        nchw_us = cudnn_alone_us(spec, gpu)
    if nchw_us is None:
        return None
    nchw_us += _depths_us(layer, decision, gpu)
    reason = reasons.in_nhwc(schedule, nhwc_us, record is not None, decision.schedule, nchw_us)
    choice: Choice
    if record is None:
        choice = Predicted(schedule, _default(spec), time_us=nhwc_us)
    else:
        choice = Recorded(record, nhwc_us, record.error is not None)
    return _Option(replace(decision, choice=choice, reason=reason), nhwc_us, nchw_us)


def _image_times(spec: ConvSpec) -> int:
    """How many times as long as estimated cuDNN takes for an image."""
    return _STAGED_TIMES if is_half(spec.dtype) and spec.c % channel_group(spec) else 1


def _depths_us(layer: ConvLayer, decision: Decision, gpu: GpuInfo) -> float:
    """What it takes to write maps once for each tap in depth, for a kernel that does not read volumes in place."""
    in_place = replace(layer.spec, volumes=layer.volumes)
    if family_of(decision.schedule).reads_volumes(in_place, decision.chosen or {}) == in_place:
        return 0.0
    moved = sum(math.prod(each.input_shape) for each in (in_place, layer.spec))
    return STORAGE[layer.spec.dtype].size_bytes * moved / (_DEPTHS_SHARE * gpu.dram_bytes_s) * 1e6


def _without_conversions_us(spec: ConvSpec, record: TuningRecord) -> float:
    """A record's time without conversions; where it was not taken, by what they take on its card."""
    taken_us = conversions_us(spec, gpu_info(Target(record.target)))
    return record.time_us - taken_us if record.unconverted_time_us is None else record.unconverted_time_us


def _by_time_in_nchw(spec: ConvSpec, record: TuningRecord, gpu: GpuInfo) -> float:
    """About what a layer timed in NCHW alone takes in NHWC; in NCHW cuDNN converts input and output by itself."""
    left_us = _without_conversions_us(replace(spec, residual=False), record)
    return max(_SLOWER * left_us, tensor_core_floor_us(spec, gpu) * (_RESIDUAL if spec.residual else 1))


def _default(spec: ConvSpec) -> Decisions:
    """In NHWC, an image written anew."""
    return {**NHWC, "layout": dense_cudnn.layout_in_nhwc(spec)}
