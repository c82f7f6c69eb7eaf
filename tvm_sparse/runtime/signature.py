"""What goes into a compiled model and what comes out: names, shapes and element types."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: its name, shape and element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model; with `single` it returns its one output itself, not a list."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    single: bool

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Signature":
        """Rebuild a signature from `to_json`'s output."""

        def specs(items: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(item["name"], tuple(item["shape"]), item["dtype"]) for item in items)

        return cls(specs(data["inputs"]), specs(data["outputs"]), bool(data["single"]))
