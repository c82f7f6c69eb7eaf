"""Whether a compiled model pays: how fast it is beside its dense self, by a clock or by estimates."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tvm_sparse.display.words import times_text

Kind = Literal["measured", "predicted"]
KINDS = ("measured", "predicted")
# A gain that is worth a compiler.
WORTH = 1.1


@dataclass(frozen=True)
class Verdict:
    """What one line says of a model, and what it is based on. Times are microseconds of one call.

    Attributes
    ----------
    kind
        ``measured`` by a clock on the whole model, or ``predicted`` from its layers.
    speedup
        How many times as fast as the dense contender; None where nothing is known.
    sparse_us, dense_us
        Of the model and of the fastest dense contender; None where only their ratio is known.
    dense_name
        That contender, with its version.
    error
        By what share `speedup` may be off: of a prediction what was found of others, of a measurement the spread of
        its rounds.
    layers, gaining
        Layers with weights, and those of them that have a kernel which is, or should be, faster than dense.
    unreliable
        Why a measurement is not to be trusted; empty where nothing speaks against it.
    note
        What else is to be known, such as why nothing was measured.
    variant
        The batch or size that it is of, where the model has several.
    removed
        How many filters and channels were taken out of the model, in words; empty where none were.
    details
        What was measured, as JSON values: quartiles of each contender, and the state of the machine.
    """

    kind: Kind
    speedup: float | None
    sparse_us: float | None
    dense_us: float | None
    dense_name: str
    error: float
    layers: int
    gaining: int
    unreliable: str = ""
    note: str = ""
    variant: str = ""
    removed: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_worth_it(self) -> bool:
        """Whether the gain is worth a compiler."""
        return self.speedup is not None and self.speedup >= WORTH

    def line(self) -> str:
        """The verdict in one line."""
        model = f"model, {self.variant}" if self.variant else "model"
        basis = [self.kind if self.kind == "measured" else f"predicted, +-{self.error:.0%}"]
        if self.speedup is None and self.sparse_us is None:
            known, basis = "its time is not known", []
        elif self.speedup is None or self.dense_us is None or self.sparse_us is None:
            known = f"about {self.speedup:.3g}x" if self.speedup is not None else times_text(self.sparse_us or 0.0)
        else:
            known = f"{times_text(self.dense_us, self.sparse_us)}, {self.speedup:.3g}x"
        basis += [f"dense: {self.dense_name}"] if self.speedup is not None else []
        basis += [f"{self.removed} taken out"] if self.removed else []
        basis += [f"unreliable: {self.unreliable}"] if self.unreliable else []
        basis += [self.note] if self.note else []
        return f"{model}: {known} ({'; '.join(basis)})".removesuffix(" ()")

    @classmethod
    def unknown(cls, layers: int) -> "Verdict":
        """On a model of which nobody has asked before."""
        return cls("predicted", None, None, None, "", 0.0, layers, 0)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` reads them back."""
        return {**asdict(self), "line": self.line()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Verdict":
        """Rebuild a verdict from `to_json`'s output; KeyError, TypeError, ValueError where it is no such output."""
        # Younger than other attributes.
        data = {"removed": "", **data}
        fields = {name: data[name] for name in _TYPES}
        if fields["kind"] not in KINDS or not all(type(fields[name]) in types for name, types in _TYPES.items()):
            raise ValueError("it is no verdict")
        return cls(**fields)


_NUMBER, _NOTHING = (int, float), (type(None),)
# What a file may say of each attribute.
_TYPES: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "speedup": _NUMBER + _NOTHING,
    "sparse_us": _NUMBER + _NOTHING,
    "dense_us": _NUMBER + _NOTHING,
    "dense_name": (str,),
    "error": _NUMBER,
    "layers": (int,),
    "gaining": (int,),
    "unreliable": (str,),
    "note": (str,),
    "variant": (str,),
    "removed": (str,),
    "details": (dict,),
}
