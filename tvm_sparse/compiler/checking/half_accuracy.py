"""How much of a model's accuracy is left in half precision: its outputs beside those of the same model in float32."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvm_sparse.conv.reference import relative_difference


@dataclass(frozen=True)
class Accuracy:
    """One output on some samples.

    `largest` is the largest difference, `mean` the mean one, both as fractions of the largest float32 value. For
    outputs (samples, classes) `same_class` is the share of samples whose largest value is in the same place; else None.
    """

    name: str
    samples: int
    largest: float
    mean: float
    same_class: float | None

    @classmethod
    def of(cls, name: str, found: np.ndarray, expected: np.ndarray) -> "Accuracy":
        """Of what the model gives, and what it gives in float32."""
        scale = float(np.abs(expected).max(initial=0.0)) or 1.0
        mean = float(np.abs(found.astype(np.float64) - expected).mean()) / scale if expected.size else 0.0
        has_classes = expected.ndim == 2 and expected.shape[1] > 1
        same = float((found.argmax(axis=1) == expected.argmax(axis=1)).mean()) if has_classes else None
        return cls(name, len(expected) if expected.ndim else 1, relative_difference(found, expected), mean, same)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; what is infinite is None."""
        values = asdict(self)
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}


def accuracies(
    names: Sequence[str], outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]
) -> list[dict[str, Any]]:
    """`Accuracy` of every output, as JSON values."""
    return [Accuracy.of(*each).to_json() for each in zip(names, outputs, expected, strict=True)]
