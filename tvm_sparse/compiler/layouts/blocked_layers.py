"""Choose which tensors between dense layers lie in blocks of channels on a CPU, as their kernels are fastest so.

A tensor in blocks (`conv.nchwc`) is written by a layer or by what keeps blocks (`keep_blocks`), and read by these
alone, all of which can. Nothing of it is timed on the user's machine: ResNet-50 takes 0.7 to 0.95 times as long
(docs/lab/cpu-layouts.md, "What do blocks of channels gain on a CPU?").
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm.ir import Expr, Var
from tvm.target import Target

from tvm_sparse.compiler.layouts.keep_blocks import kept_in_blocks
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.joined_layers import joined_pairs
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.conv.nchwc import NCHW, Layouts
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.passes.relax_graph import Graph
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.cpu.blocked_space import BlockedSpace
from tvm_sparse.scheduling.family import schedule_of
from tvm_sparse.scheduling.kernel import Kernel, kernel_of
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

# A space is made of ``(name, spec, cpu, layouts, threads)``.
_SpaceOf = type[BlockedSpace]


def with_blocks(plan: Plan) -> Plan:
    """`plan` with the layouts of the tensors of each layer, where some of these lie in blocks."""
    prepared, target = plan.prepared, plan.target
    spaces = _spaces(plan.layers, plan.decisions, target)
    if len(spaces) < 2:
        return plan.with_decisions(replace(each, layouts=NCHW) for each in plan.decisions)
    steps = _steps(prepared, spaces, CpuInfo.of(target))
    blocked = _blocked(steps, prepared.graph)
    layouts = {each.layer: _layouts(each, blocked, target) for each in steps}
    return plan.with_decisions(replace(each, layouts=layouts.get(each.layer, NCHW)) for each in plan.decisions)


def blocked_kernel(layer: ConvLayer, decision: Decision, target: Target) -> tuple[Space, Kernel]:
    """The space and the kernel that compute `layer` in the decision's layouts."""
    cpu, make = CpuInfo.of(target), _space_of(layer, decision, CpuInfo.of(target))
    assert make is not None, "only layers that can be computed in blocks have such layouts"
    space = make(schedule_of(decision.schedule), layer.spec, cpu, decision.layouts, thread_count(target))
    return space, replace(kernel_of(space, space.scheduled(), layer.weight), layouts=decision.layouts)


def _spaces(layers: Sequence[ConvLayer], decisions: Sequence[Decision], target: Target) -> dict[str, _SpaceOf]:
    """The spaces of the layers that can be computed in blocks."""
    if not any(family_of(each.schedule).blocked for each in decisions):
        return {}
    cpu = CpuInfo.of(target)
    joined = {each.name for pair in joined_pairs(layers, decisions) for each in (pair.expansion, pair.layer)}
    found = {}
    for layer, decision in zip(layers, decisions, strict=True):
        space = _space_of(layer, decision, cpu)
        if space is not None and layer.name not in joined and not layer.is_linear:
            found[layer.name] = space
    return found


def _space_of(layer: ConvLayer, decision: Decision, cpu: CpuInfo) -> _SpaceOf | None:
    offered = family_of(decision.schedule).blocked
    return next((each for each in offered if each.writes(layer.spec, cpu)), None)


@dataclass(frozen=True)
class _Step:
    """A layer, or what keeps blocks, whose `layer` is "", by the tensors that it reads and its result.

    `can_read` and `can_write`: blocks; `is_uniform`: of all its tensors or none; `fills_last`: it reads blocks only
    where its result, whose channels are no multiple of a block's, lies in blocks.
    """

    layer: str
    data: tuple[Expr, ...]
    residual: Expr | None
    result: Var
    can_read: bool
    can_write: bool
    is_uniform: bool
    fills_last: bool = False

    def unfit(self, blocked: Collection[Expr]) -> Collection[Expr]:
        """The tensors that cannot be in blocks as others are not."""
        tensors = {self.result, *self.data, *([] if self.residual is None else [self.residual])}
        in_blocks = {each for each in tensors if each in blocked}
        if self.is_uniform and len(in_blocks) < len(tensors):
            return in_blocks
        if self.fills_last and self.result not in blocked:
            return in_blocks
        # A residual is added as the output lies.
        has_other = self.residual is not None and self.residual not in blocked
        return in_blocks & {self.result} if has_other else set()


def _steps(prepared: PreparedModel, spaces: Mapping[str, _SpaceOf], cpu: CpuInfo) -> list[_Step]:
    found = []
    for group in prepared.groups:
        space, spec = spaces.get(group.layer.name), group.layer.spec
        can_read = space is not None and space.reads(spec, cpu)
        is_uniform = space is not None and space.is_uniform
        of = ((group.data,), group.residual, group.result, can_read, space is not None, is_uniform)
        found.append(_Step(group.layer.name, *of, fills_last=spec.k % cpu.lanes > 0))
    for var, kept in kept_in_blocks(prepared.graph, prepared.groups).items():
        can_write = kept.writes and kept.fits(cpu.lanes)
        found.append(_Step("", tuple(dict.fromkeys(kept.reads)), None, var, True, can_write, kept.writes))
    return found


def _blocked(steps: Sequence[_Step], graph: Graph) -> Collection[Expr]:
    """The results that lie in blocks: as many as there can be.

    All that can are, until none of them makes another tensor of its layer impossible: taking one out never makes room
    for another.
    """
    readers: defaultdict[Expr, list[_Step]] = defaultdict(list)
    for step in steps:
        for tensor in (*step.data, step.residual):
            if isinstance(tensor, Var):
                readers[tensor].append(step)

    def can_be(step: _Step) -> bool:
        of, is_returned = readers[step.result], step.result in graph.returned
        is_known = 0 < len(of) == len(graph.users[step.result]) and not is_returned
        return step.can_write and is_known and all(each.can_read for each in of)

    blocked: set[Expr] = {step.result for step in steps if can_be(step)}
    while wrong := {tensor for step in steps for tensor in step.unfit(blocked)}:
        blocked -= wrong
    return blocked


def _layouts(step: _Step, blocked: Collection[Expr], target: Target) -> Layouts:
    of = (step.data[0] in blocked, step.residual in blocked, step.result in blocked)
    return Layouts(CpuInfo.of(target).lanes, *of) if any(of) else NCHW
