"""How outputs of a convolution interleave to those of a transposed one, whose filters it has once for each phase."""

import math
from typing import NamedTuple

import numpy as np


class Interleaving(NamedTuple):
    """Along rows and columns: output ``o`` is number ``(o + shift) // stride`` of phase ``(o + shift) % stride``.

    Filters of a phase lie together, those of the phases of a row behind each other.
    """

    stride: tuple[int, int]
    shift: tuple[int, int]
    outputs: tuple[int, int]

    @property
    def phases(self) -> int:
        """How many there are."""
        return math.prod(self.stride)

    def shape(self, n: int, k: int) -> tuple[int, int, int, int]:
        """Of what becomes of `k` filters' outputs."""
        return (n, k // self.phases, *self.outputs)

    def of(self, maps: np.ndarray) -> np.ndarray:
        """`maps` (N, phases * K, rows, columns) as (N, K, H, W)."""
        (down, right), (above, left), (height, width) = self
        n, k, rows, columns = maps.shape
        split = maps.reshape(n, down, right, k // self.phases, rows, columns).transpose(0, 3, 4, 1, 5, 2)
        whole = split.reshape(n, k // self.phases, rows * down, columns * right)
        return whole[:, :, above : above + height, left : left + width]
