"""Scales and zero points of a quantised layer, as its file has them."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LayerScales:
    """Of a layer's input, and of its weight scales and zero points, one or one a filter.

    Those that are None are left where sums are multiplied by one scale behind the layer, and weights less their zero
    points already.
    """

    zero: int
    scale: float | None
    of_weight: tuple[np.ndarray, np.ndarray] | None

    def to_json(self) -> dict[str, Any]:
        """As JSON values; of a weight the least and the largest of all filters."""
        found: dict[str, Any] = {"input_zero_point": self.zero, "input_scale": self.scale}
        if self.of_weight is not None:
            names = ("weight_scale", "weight_zero_point")
            found |= {
                name: [each.min().item(), each.max().item()] for name, each in zip(names, self.of_weight, strict=True)
            }
        return found


def text_of(scales: dict[str, Any]) -> str:
    """What a person reads of a `LayerScales.to_json`."""
    of_input = f"zero point of the input {scales['input_zero_point']}"
    if "weight_scale" not in scales:
        return f"{of_input}, one scale behind the layer"
    of_weight = f"of the weight {_text(scales['weight_zero_point'])}"
    return f"{of_input}, {of_weight}; scales {scales['input_scale']:.6g} and {_text(scales['weight_scale'])}"


def _text(numbers: list[float]) -> str:
    least, most = (f"{each:.6g}" for each in numbers)
    return least if least == most else f"{least} to {most}"
