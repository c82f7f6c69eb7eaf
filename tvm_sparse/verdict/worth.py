"""Whether a model is worth compiling, before anything is compiled: one sentence."""

from dataclasses import dataclass

from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.compatibility import why_not_here

PRUNING = "see docs/pruning.md"


def worth(plan: Plan, verdict: Verdict) -> str:
    """``yes`` or ``no`` and why, by the prediction on a plan and by its zeros."""
    if not plan.layers:
        return "no: there is no convolution, and no linear layer with zeros"
    density, kind = density_of(plan), "GPU" if plan.target.kind.name == "cuda" else "CPU"
    place = f"such a {kind}" if why_not_here(plan.target) else f"this {kind}"
    unpruned = f"nothing is pruned (density {density:.2f})" if is_unpruned(plan) else ""
    if verdict.is_worth_it:
        layers = f"{verdict.gaining} of {verdict.layers} layers gain"
        more = f", though {unpruned}, {PRUNING}" if unpruned else ""
        return f"yes, about {verdict.speedup:.2g}x on {place} (predicted, +-{verdict.error:.0%}); {layers}{more}"
    if unpruned:
        return f"no: {unpruned}; {PRUNING}"
    return (
        f"no: about {verdict.speedup or 1.0:.2g}x on {place} (predicted, +-{verdict.error:.0%}), density {density:.2f}"
    )


@dataclass(frozen=True)
class Zeros:
    """What of a model could be taken out altogether: layers without weights, and filters and channels of the others.

    A filter is dead where all its weights are zero, an input channel where nothing reads it.
    """

    zero_layers: int
    dead_filters: int
    dead_channels: int

    @classmethod
    def of(cls, plan: Plan) -> "Zeros":
        """Of all layers of a plan; channels of groups are no input of their own."""
        others = [each for each in plan.layers if each.pattern.nnz]
        filters = sum(each.pattern.dead_filters for each in others)
        channels = sum(each.pattern.dead_channels for each in others if each.spec.groups == 1)
        return cls(len(plan.layers) - len(others), filters, channels)

    def text(self) -> str:
        """As a sentence; empty where there is nothing."""
        counts = {"layer": self.zero_layers, "filter": self.dead_filters, "input channel": self.dead_channels}
        parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]
        return f"All zero: {', '.join(parts)}; pruning tools can take them out of the model." if parts else ""


def density_of(plan: Plan) -> float:
    """Of all weights of the layers."""
    return sum(each.pattern.nnz for each in plan.layers) / max(1, sum(each.size for each in plan.layers))


def is_unpruned(plan: Plan) -> bool:
    """Whether no layer has enough zeros to count as pruned."""
    return not any(each.is_pruned for each in plan.layers)
