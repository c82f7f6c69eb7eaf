"""How outputs of a convolution interleave to those of a transposed one, whose filters it has once for each phase."""

import math
from typing import Any, NamedTuple

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

    @property
    def is_whole(self) -> bool:
        """Whether there is every number of every phase up to the last output, and the first one is of the first."""
        return self.shift == (0, 0) and not any(
            outputs % stride for outputs, stride in zip(self.outputs, self.stride, strict=True)
        )

    def by_channel(self, filters: np.ndarray) -> np.ndarray:
        """`filters` with all phases of a channel behind each other."""
        return filters[np.arange(len(filters)).reshape(self.phases, -1).T.ravel()]

    def place(self, filter_by_channel: Any, row: Any, column: Any) -> tuple[Any, Any, Any]:
        """(channel, row, column) among the outputs of one of a filter's, of expressions, where it `is_whole`."""
        channel, phase = filter_by_channel // self.phases, filter_by_channel % self.phases
        (down, right), below = self.stride, phase // self.stride[1]
        return channel, row * down + below, column * right + phase % right

    def of(self, maps: np.ndarray) -> np.ndarray:
        """`maps` (N, phases * K, rows, columns) as (N, K, H, W)."""
        (down, right), (above, left), (height, width) = self
        n, k, rows, columns = maps.shape
        split = maps.reshape(n, down, right, k // self.phases, rows, columns).transpose(0, 3, 4, 1, 5, 2)
        whole = split.reshape(n, k // self.phases, rows * down, columns * right)
        return whole[:, :, above : above + height, left : left + width]


class ByChannel:
    """A bias that is indexed by filters as `Interleaving.by_channel` orders them."""

    def __init__(self, bias: Any, interleaving: Interleaving, filters: int):
        self._bias, self._phases, self._channels = bias, interleaving.phases, filters // interleaving.phases

    def __getitem__(self, filter_by_channel: Any) -> Any:
        return self._bias[filter_by_channel % self._phases * self._channels + filter_by_channel // self._phases]
