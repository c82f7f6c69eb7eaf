"""The kernel of each layer of a plan, scheduled; what does not fit gives way to dense."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvm.target import Target

from tvm_sparse.compiler.building.dense_products import Make
from tvm_sparse.compiler.building.kernel_parts import as_one, in_parts
from tvm_sparse.compiler.building.kernel_store import KernelRequest
from tvm_sparse.compiler.layouts.blocked_layers import blocked_kernel
from tvm_sparse.compiler.layouts.byte_tensors import ByteLayer
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.dense_fallback import can_be_dense, to_dense
from tvm_sparse.compiler.plan.joined_layers import joined_kernel, joined_pairs
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.measure.safe_replay import SafeReplay
from tvm_sparse.schedules.lookup import family_of, find_space
from tvm_sparse.scheduling.cpu.byte_space import ByteDepthwiseSpace, ByteSpace
from tvm_sparse.scheduling.cpu.line_space import LineSpace
from tvm_sparse.scheduling.cpu.nchwc import NCHWcSpace
from tvm_sparse.scheduling.kernel import Kernel, kernel_of
from tvm_sparse.scheduling.space import Space


def kernels_of(
    layers: Sequence[ConvLayer],
    decisions: list[Decision],
    target: Target,
    make: Make | None = None,
    of_bytes: Mapping[str, ByteLayer] | None = None,
) -> dict[str, Kernel]:
    """Kernel of each layer, scheduled, or made by `make`. Replaces decisions, in place, which do not fit by dense.

    `of_bytes` has the layers that read bytes.

    Layers that another's kernel computes too have none. TvmSparseError where not even the default dense kernel can be
    made.
    """
    make = make or partial(scheduled, target=target)
    pairs = joined_pairs(layers, decisions)
    kernels = {pair.layer.name: joined_kernel(pair, target)[1] for pair in pairs}
    for layer, decision in zip(layers, decisions, strict=True):
        if decision.layouts.has_blocks:
            kernels[layer.name] = blocked_kernel(layer, decision, target)[1]
        elif of_bytes and layer.name in of_bytes:
            kernels[layer.name] = _byte_kernel(layer, decision, target, of_bytes[layer.name])
    expansions = {pair.expansion.name for pair in pairs}
    while missing := [(i, each) for i, each in enumerate(layers) if each.name not in kernels.keys() | expansions]:
        requests = [
            in_parts(KernelRequest.of(layer, decisions[index]), decisions[index], target) for index, layer in missing
        ]
        made = iter(make([each for parts in requests for each in parts]))
        for (index, layer), parts in zip(missing, requests, strict=True):
            kernel = as_one([next(made) for _ in parts])
            if isinstance(kernel, Kernel):
                kernels[layer.name] = kernel
            elif not can_be_dense(decisions[index], target):
                raise kernel
            else:
                decisions[index] = to_dense(decisions[index], target, str(kernel))
    return kernels


def _byte_kernel(layer: ConvLayer, decision: Decision, target: Target, of_bytes: ByteLayer) -> Kernel:
    space = find_space(decision.schedule, layer.spec, layer.pattern, target)
    assert isinstance(space, ByteSpace | ByteDepthwiseSpace), "only its family takes bytes"
    return space.kernel_in(of_bytes.form, layer.weight, decision.chosen)


def scheduled(requests: Sequence[KernelRequest], target: Target) -> list[Kernel | TvmSparseError]:
    """The kernel of each request, the same object for equal ones, or why it does not fit."""
    made: dict[tuple[Any, ...], Kernel | TvmSparseError] = {}
    found = []
    with SafeReplay() as replay:
        for each in requests:
            decisions = json.dumps(each.decisions, sort_keys=True)
            key = (each.spec, each.pattern.value_digest, each.schedule, decisions, each.interleaving)
            if key not in made:
                made[key] = _scheduled_kernel(each, target, replay)
            found.append(made[key])
    return found


def _scheduled_kernel(request: KernelRequest, target: Target, replay: SafeReplay) -> Kernel | TvmSparseError:
    spec, pattern = request.spec, request.pattern
    try:
        space = find_space(request.schedule, spec, pattern, target)
        mixing = _interleaving_space(request, space, target) if request.interleaving is not None else None
        space = mixing or space
        schedule = replay.scheduled(space, spec, pattern, target, request.decisions)
        kernel = kernel_of(space, schedule, request.weight)
        return replace(kernel, volumes=spec.volumes, interleaving=request.interleaving if mixing else None)
    except TvmSparseError as error:
        return error


def _interleaving_space(request: KernelRequest, first: Space, target: Target) -> Space | None:
    """`first`, or where nothing is decided another one of its family, whose kernels interleave their outputs."""
    assert request.interleaving is not None
    offered = [first]
    if request.decisions is None and request.schedule == first.schedule:
        offered += family_of(first.schedule).spaces(request.spec, request.pattern, target)
    can = (each for each in offered if isinstance(each, LineSpace | NCHWcSpace))
    found = (each.interleaved(request.interleaving) for each in can)
    return next((each for each in found if each is not None), None)
