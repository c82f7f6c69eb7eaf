"""A model on its way to a library: its layers, and what computes each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tvm.target import Target

from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.prepare import PreparedModel


@dataclass(frozen=True)
class Plan:
    """What passes take and return; see `pipeline`.

    `decisions` are those of each layer of `prepared`, in program order.
    """

    prepared: PreparedModel
    decisions: tuple[Decision, ...]
    target: Target

    @classmethod
    def of(cls, prepared: PreparedModel, decisions: Iterable[Decision], target: Target) -> "Plan":
        """A plan of what was decided elsewhere."""
        return cls(prepared, tuple(decisions), target)

    @property
    def layers(self) -> Sequence[ConvLayer]:
        """The layers that decisions are about."""
        return self.prepared.layers

    @property
    def pairs(self) -> Iterable[tuple[ConvLayer, Decision]]:
        """Each layer with what was decided about it."""
        return zip(self.layers, self.decisions, strict=True)

    def with_decisions(self, decisions: Iterable[Decision]) -> "Plan":
        """The plan with others in their place."""
        return replace(self, decisions=tuple(decisions))
