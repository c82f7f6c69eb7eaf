"""Whether a model is worth compiling, before anything is compiled: one sentence."""

from dataclasses import dataclass

from tvm_sparse.compiler.plan.expected_gain import shares_of_others
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.display.words import removed_text
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.compatibility import why_not_here

PRUNING = "see docs/pruning.md"
# A share of the time in other operators that is worth a word.
MANY_OTHERS = 0.2


def worth(plan: Plan, verdict: Verdict, allow_tf32: bool = False) -> str:
    """``yes`` or ``no`` and why, by the prediction on a plan and by its zeros, and where else its time is."""
    if not plan.layers:
        return "no: there is no convolution, and no linear layer with zeros"
    shares = shares_of_others(plan, allow_tf32)
    parts = [f"{share:.0%} of its time is in {kind}" for kind, share in shares.items() if share >= MANY_OTHERS]
    return "; about ".join([_of_layers(plan, verdict), *parts])


def _of_layers(plan: Plan, verdict: Verdict) -> str:
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

    A filter is dead where all its weights are zero, an input channel where nothing reads it. `removed` ones were in the
    model, and are compiled no more.
    """

    zero_layers: int
    dead_filters: int
    dead_channels: int
    removed_filters: int = 0
    removed_channels: int = 0

    @classmethod
    def of(cls, plan: Plan) -> "Zeros":
        """Of all layers of a plan; channels of groups are no input of their own."""
        others = [each for each in plan.layers if each.pattern.nnz]
        filters = sum(each.model_pattern.dead_filters for each in others)
        channels = sum(each.model_pattern.dead_channels for each in others if each.spec.groups == 1)
        return cls(len(plan.layers) - len(others), filters, channels, *plan.prepared.removed)

    def text(self) -> str:
        """As a sentence; empty where there is nothing."""
        counts = {"layer": self.zero_layers, "filter": self.dead_filters, "input channel": self.dead_channels}
        parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if count]
        removed = removed_text(self.removed_filters, self.removed_channels)
        texts = [f"Taken out: {removed}."] if removed else []
        texts += (
            [f"All zero, and kept, as other layers or whole vectors need them: {', '.join(parts)}."] if parts else []
        )
        return " ".join(texts)


def density_of(plan: Plan) -> float:
    """Of all weights of the layers, as they were in the model."""
    layers = plan.prepared.as_given.layers
    return sum(each.pattern.nnz for each in layers) / max(1, sum(each.model_pattern.size for each in layers))


def is_unpruned(plan: Plan) -> bool:
    """Whether no layer has enough zeros to count as pruned."""
    return not any(each.is_pruned for each in plan.prepared.as_given.layers)
