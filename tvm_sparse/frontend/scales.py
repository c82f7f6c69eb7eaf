"""Scales and zero points of a quantised layer, as its file has them."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LayerScales:
    """Of a layer's input, and of its weight: one, or one a filter.

    The input's scale is None where it is not known before the model runs, or is multiplied behind the layer alone.
    """

    input_scale: float | None
    input_zero: int
    weight_scales: np.ndarray
    weight_zeros: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """As JSON values; of a weight the least and the largest of all filters."""
        weight = {"scale": _range(self.weight_scales), "zero_point": _range(self.weight_zeros)}
        return {"input": {"scale": self.input_scale, "zero_point": self.input_zero}, "weight": weight}


def text_of(scales: dict[str, Any]) -> str:
    """What a person reads of the `LayerScales.to_json`."""
    given, weight = scales["input"], scales["weight"]
    scale = "with its scale behind the layer" if given["scale"] is None else f"scale {given['scale']:.6g}"
    of_weight = f"scale {_text(weight['scale'])}, zero point {_text(weight['zero_point'])}"
    return f"input {scale}, zero point {given['zero_point']}; weight {of_weight}"


def _range(numbers: np.ndarray) -> list[float]:
    return [numbers.min().item(), numbers.max().item()]


def _text(numbers: list[float]) -> str:
    least, most = (f"{each:.6g}" for each in numbers)
    return least if least == most else f"{least} to {most}"
