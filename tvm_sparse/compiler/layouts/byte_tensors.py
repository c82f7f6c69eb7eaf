"""Which tensors of a quantised network are bytes, as kernels of eight-bit integers read them and write them.

Such a kernel takes in what scales, rounds and clips its sums, and where the codes of another layer are added in
between, and rounded again, that too. It writes the bytes that the next one reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tvm.ir import Call, Expr, Var

from tvm_sparse.compiler.layouts.byte_steps import code_bounds
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.conv.byte_form import ByteForm, Stage
from tvm_sparse.conv.codes import CODES, FOUR, LEAST_SIGNED
from tvm_sparse.frontend.passes.find_convolutions import Group
from tvm_sparse.frontend.passes.relax_graph import Graph, channel_vector, is_call, static_shape
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.schedules.lookup import family_of


@dataclass(frozen=True)
class ByteLayer:
    """A layer that reads bytes: its `group`, with all that its kernel takes in, and the kernel's form."""

    group: Group
    form: ByteForm

    @property
    def readers(self) -> tuple[Var, ...]:
        """The variables of the group that are computed of bytes: without stages no residual is."""
        variables = (*self.group.absorbed, self.group.result)
        return variables if self.form.stages else variables[:1]


def byte_layers(prepared: PreparedModel, decisions: Sequence[Decision]) -> dict[str, ByteLayer]:
    """The layers whose kernels read bytes, by name."""
    found: dict[str, ByteLayer] = {}
    # Tensors of bytes, and the least code of each.
    codes: dict[Expr, int] = {}
    for group, decision in zip(prepared.groups, decisions, strict=True):
        if not family_of(decision.schedule).takes_bytes:
            continue
        codes.setdefault(group.data, group.layer.spec.least)
        layer = _with_codes(prepared.graph, group, codes) or ByteLayer(group, ByteForm())
        found[group.layer.name] = layer
        if layer.form.stages:
            codes[layer.group.result] = layer.form.least
    return found


def _with_codes(graph: Graph, group: Group, codes: Mapping[Expr, int]) -> ByteLayer | None:
    """The layer with what makes codes of its sums, if its kernel can; `codes` has the tensors of bytes before it."""
    layer, spec = group.layer, group.layer.spec
    bias = np.zeros(spec.k) if layer.bias is None else layer.bias.astype(np.float64)
    start = _Scaled(least=0.0 if spec.relu else -np.inf)
    if (bias != np.rint(bias)).any():
        start.shift, bias = bias.astype(np.float32), np.zeros(spec.k)
    sums = float(np.prod(spec.weight_shape[1:])) * CODES * -LEAST_SIGNED + float(np.abs(bias).max())
    is_plain = not spec.is_clipped and group.residual is None and spec.k % FOUR == 0
    if not is_plain or sums >= 2.0**31:
        return None
    chain = list(_stages(graph, group.result, spec.k, codes, start))
    while chain and not chain[-1].form.is_bounded(sums):
        chain.pop()
    if not chain:
        return None
    last = chain[-1]
    plain = replace(layer, bias=None)
    *between, result = last.absorbed
    absorbed = (*group.absorbed, group.result, *between)
    whole = replace(group, layer=plain, absorbed=absorbed, result=result, residual=last.residual, behind=None)
    return ByteLayer(whole, replace(last.form, bias=bias))


@dataclass(frozen=True)
class _Chain:
    """What follows sums up to a tensor of codes: the variables, the last of which it is, and what adds to it."""

    form: ByteForm
    absorbed: tuple[Var, ...]
    residual: Expr | None


@dataclass
class _Scaled:
    """What is done to a value since it was rounded: ``own * value + shift + other * residual``, not below `least`."""

    own: np.ndarray = field(default_factory=lambda: np.ones(1, np.float32))
    other: np.float32 | None = None
    least: float = -np.inf
    shift: np.ndarray | None = None

    def times(self, factor: np.ndarray) -> bool:
        """Multiply by a positive factor, one number where a residual was added; whether that could be done."""
        if not (factor > 0).all() or (self.other is not None and factor.size > 1 and np.ptp(factor) > 0):
            return False
        self.own = (self.own * factor.astype(np.float32)).astype(np.float32)
        self.shift = None if self.shift is None else (self.shift * factor.astype(np.float32)).astype(np.float32)
        self.other = None if self.other is None else np.float32(self.other * factor.flat[0])
        return True


def _stages(graph: Graph, sums: Var, filters: int, codes: Mapping[Expr, int], scaled: _Scaled) -> Iterator[_Chain]:
    """Each tensor of codes that follows `sums`, one after the other; `scaled` is what was done to these."""
    var, absorbed, stages = sums, list[Var](), list[Stage]()
    residual: Expr | None = None
    while (user := graph.only_user(var)) is not None:
        following, step = user
        absorbed.append(following)
        if is_call(step, "relax.nn.relu"):
            scaled.least = 0.0
        elif is_call(step, "relax.round"):
            user = graph.only_user(following)
            bounds = None if user is None else code_bounds(user[1])
            if user is None or bounds is None:
                return
            following = user[0]
            absorbed.append(following)
            least = int(max(scaled.least, bounds[0]))
            stages.append(Stage(scaled.own, scaled.other, least, max(least, bounds[1]), scaled.shift))
            scaled = _Scaled()
            of_residual = None if residual is None else codes[residual]
            yield _Chain(ByteForm(tuple(stages), bounds[0], of_residual), tuple(absorbed), residual)
        elif is_call(step, "relax.add"):
            other = _other(step, var)
            shift = channel_vector(other, (1, filters, 1, 1))
            if shift is not None and scaled.shift is None and scaled.least == -np.inf:
                scaled.shift, var = shift.astype(np.float32), following
                continue
            added = _residual(graph, other, var, codes)
            if residual is not None or added is None or scaled.least > -np.inf:
                return
            residual, scaled.other = added
            if not other.same_as(residual) and graph.only_user(other) is not None:
                absorbed.insert(0, other)
        elif not _scales(step, var, filters, scaled):
            return
        var = following


def _scales(step: Call, var: Var, filters: int, scaled: _Scaled) -> bool:
    """Whether `step` multiplies `var` by positive constants or divides it by them, which `scaled` then does too."""
    operator = next((each for each in ("multiply", "divide") if is_call(step, f"relax.{each}")), None)
    if operator is None or not (step.args[0].same_as(var) or operator == "multiply"):
        return False
    factor = channel_vector(_other(step, var), (1, filters, 1, 1))
    if factor is None or not (factor > 0).all():
        return False
    factor = factor[:1] if np.ptp(factor) == 0 else factor
    return scaled.times(factor if operator == "multiply" else 1 / factor)


def _other(step: Call, var: Var) -> Expr:
    """What an operator of two operands takes beside `var`."""
    return step.args[1] if step.args[0].same_as(var) else step.args[0]


def _residual(graph: Graph, other: Expr, var: Var, codes: Mapping[Expr, int]) -> tuple[Expr, np.float32] | None:
    """The tensor of bytes of which `other`, which is added to `var`, is a multiple, and the factor of its codes."""
    if static_shape(other) != static_shape(var):
        return None
    if other in codes:
        return other, np.float32(1)
    value = graph.definitions.get(other)
    if value is None or not is_call(value, "relax.multiply"):
        return None
    source, factor = value.args if value.args[0] in codes else value.args[::-1]
    number = channel_vector(factor, (1, 1, 1, 1))
    if number is None or not number[0] > 0 or source not in codes or static_shape(source) != static_shape(var):
        return None
    return source, np.float32(number[0])
