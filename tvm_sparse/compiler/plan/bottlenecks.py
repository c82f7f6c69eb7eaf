"""Let one kernel compute three layers of a residual network on a GPU, where that is faster.

Between cuDNN's layers in NHWC, in half precision, memory bounds these: each reads and writes what lies between. The
kernel (`scheduling.cuda.bottleneck`) is taken where it was, or should be, faster than the three are expected to be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tvm.ir import Expr, Var

from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.reasons import dense_because, in_one_kernel
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer, Group
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import Bottleneck
from tvm_sparse.scheduling.cuda.bottleneck.kernels import LIBRARIES
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu import gpu_info


class Joined(NamedTuple):
    """Three layers, the last of which adds what the first reads."""

    first: ConvLayer
    second: ConvLayer
    third: ConvLayer

    @property
    def bottleneck(self) -> Bottleneck:
        """What a kernel computes."""
        return Bottleneck(*(each.spec for each in self))

    @property
    def kernel(self) -> str:
        """The name of the kernel that computes it."""
        return LIBRARIES[self.first.spec.dtype].names[0]


def with_bottlenecks(plan: Plan, log: TuningLog | None = None, predict: bool = True) -> Plan:
    """`plan`, where layers say which layer's kernel computes them too, and why.

    By the log's record of such a kernel; without one by an estimate, if it may `predict`.
    """
    if plan.target.kind.name != "cuda":
        return plan
    gpu, chosen = gpu_info(plan.target), {each.layer: each for each in plan.decisions}
    for joined in _found(plan.prepared):
        if not joined.bottleneck.is_served(gpu):
            continue
        *others, last = (chosen[each.name] for each in joined)
        apart_us = _apart_us([*others, last])
        record = log.bottleneck(joined.third.spec, fingerprint_of(plan.target)) if log is not None else None
        time_us = record.time_us if record is not None else joined.bottleneck.estimated_us(gpu)
        if time_us >= apart_us or (record is None and not predict):
            continue
        reason = in_one_kernel(last.layer, time_us, apart_us, is_measured=record is not None)
        chosen |= {each.layer: replace(each, joins=last.layer, reason=reason) for each in others}
        computed = " and ".join(each.layer for each in others)
        chosen[last.layer] = replace(last, reason=last.reason.and_computes(computed))
    return plan.with_decisions(chosen.values())


def joined_bottlenecks(prepared: PreparedModel, decisions: Sequence[Decision]) -> list[Joined]:
    """Those that were decided."""
    joins = {each.layer: each.joins for each in decisions}
    return [each for each in _found(prepared) if joins[each.first.name] == joins[each.second.name] == each.third.name]


def without_bottlenecks(decisions: Sequence[Decision], wrong: Mapping[str, str]) -> list[Decision]:
    """`decisions` where layers are computed apart, of which the kernel of the last, by its name, is `wrong`."""

    def apart(decision: Decision) -> Decision:
        last = decision.joins or decision.layer
        return replace(decision, joins=None, reason=dense_because(wrong[last])) if last in wrong else decision

    return list(map(apart, decisions))


def _found(prepared: PreparedModel) -> list[Joined]:
    by_result = {each.result: each for each in prepared.groups}
    found = []
    for third in prepared.groups:
        second = _before(third, by_result, prepared.graph)
        first = _before(second, by_result, prepared.graph) if second is not None else None
        if first is None or second is None or third.residual is None:
            continue
        if first.data.same_as(third.residual):
            found.append(Joined(first.layer, second.layer, third.layer))
    return found


def _before(group: Group, by_result: Mapping[Expr, Group], graph: Graph) -> Group | None:
    """The layer that `group` alone reads."""
    own = {*group.absorbed, group.result}

    def is_own(var: Var) -> bool:
        # Half-precision layers are fed in float32.
        return var in own or (is_call(graph.definitions[var], "relax.astype") and own.issuperset(graph.users[var]))

    before = by_result.get(group.data)
    if before is None or before.result in graph.returned or not all(map(is_own, graph.users[before.result])):
        return None
    return before


def _apart_us(decisions: Sequence[Decision]) -> float:
    """What layers should take together in cuDNN and NHWC; 0 of others, and where nothing says it."""
    found = [each.choice.expected_us for each in decisions]
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) and all(map(_is_in_nhwc, decisions)) else 0.0


def _is_in_nhwc(decision: Decision) -> bool:
    decisions = decision.chosen
    return isinstance(decisions, dict) and (decisions.get("layout"), decisions.get("epilogue")) == ("nhwc", "fused")
