"""Let one kernel compute an expansion and the depthwise convolution behind it on a CPU, where that is faster.

What lies between them never leaves a core's cache then (`scheduling.cpu.expansion`). Nothing of it is timed on the
user's machine: of dense layers all nine pairs gained with two threads, eight with one, and none lost within MobileNetV2
(docs/lab/cpu-layouts.md, "What does one kernel for two layers gain on a CPU?").
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tvm.target import Target

from tvm_sparse.compiler.plan.choice import Default
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.reasons import joined
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.family import schedule_of
from tvm_sparse.scheduling.kernel import Kernel, kernel_of
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

# A kernel that leaves out an expansion's zeros writes what that expands to; where it is so much, a dense one that does
# not write it is faster: by a thread that reads what it wrote itself, and by several that share an image.
LEAST_BYTES, LEAST_BYTES_OF_THREADS = 1_500_000, 500_000


class Joined(NamedTuple):
    """An expansion, and the layer of a schedule whose kernel computes both."""

    expansion: ConvLayer
    layer: ConvLayer
    schedule: str


def with_joined(plan: Plan) -> Plan:
    """`plan`, where expansions say which layer's kernel computes them too, and why.

    They know already what would lie in blocks of channels if nothing were joined.
    """
    chosen = {each.layer: each for each in plan.decisions}
    for expansion, layer in _pairs(plan.layers):
        of_both = chosen[expansion.name], chosen[layer.name]
        if of_both[0].joins is None and _is_worth_it(expansion, layer, *of_both, plan.target):
            chosen[expansion.name] = _joined(*of_both)
            chosen[layer.name] = replace(of_both[1], reason=of_both[1].reason.and_computes(expansion.name))
    return plan.with_decisions(chosen.values())


def joined_pairs(layers: Sequence[ConvLayer], decisions: Sequence[Decision]) -> list[Joined]:
    """Expansions and the depthwise layers whose kernels compute them too.

    None where an expansion has other readers, as in a model that shows what all layers compute.
    """
    chosen = {each.layer: each for each in decisions}
    pairs = [Joined(*pair, schedule_of(chosen[pair[1].name].schedule)) for pair in _pairs(layers)]
    found = (each for each in pairs if chosen[each.expansion.name].joins == each.layer.name)
    return [each for each in found if family_of(each.schedule).joined is not None]


def joined_kernel(pair: Joined, target: Target) -> tuple[Space, Kernel]:
    """The space and the kernel that compute both layers."""
    expansion, layer, schedule = pair
    make = family_of(schedule).joined
    assert make is not None, "only layers whose family computes an expansion too are joined"
    space = make(schedule, expansion.spec, layer.spec, CpuInfo.of(target), thread_count(target))
    kernel = kernel_of(space, space.scheduled(), layer.weight)
    constants = (*space.expansion_constants(expansion.weight, expansion.bias), *kernel.constants)
    return space, replace(kernel, constants=constants, expands=True)


def _pairs(layers: Sequence[ConvLayer]) -> list[tuple[ConvLayer, ConvLayer]]:
    """Layers with the one among `layers` that alone reads their result."""
    by_name = {each.name: each for each in layers}
    return [(each, by_name[each.feeds]) for each in layers if each.feeds in by_name]


def _is_worth_it(
    expansion: ConvLayer, layer: ConvLayer, expanding: Decision, decision: Decision, target: Target
) -> bool:
    expander, family = family_of(expanding.schedule), family_of(decision.schedule)
    # One of zeros alone writes its bias, as fast as that is read.
    if expander.of_zeros or family.joined is None:
        return False
    if not family.joined.serves(expansion.spec, layer.spec, CpuInfo.of(target)):
        return False
    if expander.is_dense:
        # Where both lie in blocks of channels, kernels of their own are as fast.
        return not decision.layouts.x
    spec, threads = expansion.spec, thread_count(target)
    if spec.n % threads == 0:
        return spec.output_bytes >= threads * LEAST_BYTES
    return spec.output_bytes >= LEAST_BYTES_OF_THREADS


def _joined(expanding: Decision, decision: Decision) -> Decision:
    choice = Default(schedule_of(decision.schedule))
    return replace(expanding, choice=choice, reason=joined(decision.layer), joins=decision.layer)
