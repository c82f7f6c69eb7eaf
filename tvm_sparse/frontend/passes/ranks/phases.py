"""A transposed convolution as an ordinary one of stride 1, whose outputs interleave.

Along one axis with stride s, output ``o`` reads inputs ``(o + padding - tap * dilation) / s`` where that is an integer.
So outputs whose ``o + shift`` has the same remainder f by s, a phase, read the same taps, at places that move by one
from one of them to the next: a convolution of stride 1. All phases are one convolution with s times as many filters.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Axis:
    """One axis of an ordinary convolution: sizes of input and kernel, and how they meet."""

    size: int
    taps: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def outputs(self) -> int:
        """How many there are."""
        return (self.size + self.before + self.after - (self.taps - 1) * self.dilation - 1) // self.stride + 1


@dataclass(frozen=True)
class Phases:
    """One axis of a transposed convolution as one of stride 1, `axis`, and how its outputs interleave.

    Output ``o`` is number ``(o + shift) // stride`` of phase ``(o + shift) % stride``. `taps` says for each phase which
    tap is in each place of the kernel; -1: none, a zero.
    """

    axis: Axis
    stride: int = 1
    shift: int = 0
    outputs: int = 1
    taps: tuple[tuple[int, ...], ...] = ((0,),)

    @property
    def used(self) -> int:
        """How many taps there are."""
        return int(np.count_nonzero(np.array(self.taps) >= 0))

    @classmethod
    def of(cls, transposed: Axis, added: int) -> "Phases":
        """Of a transposed convolution with `added` more outputs behind the axis.

        Of the shifts that there are, the one with the least work for kernels that compute with taps that are none.
        """
        outputs = (transposed.size - 1) * transposed.stride + (transposed.taps - 1) * transposed.dilation + 1 + added
        outputs -= transposed.before + transposed.after
        every = [_shifted(transposed, outputs, shift) for shift in range(transposed.stride)]
        return min(every, key=lambda each: each.axis.outputs * each.axis.taps)


def _shifted(transposed: Axis, outputs: int, shift: int) -> Phases:
    stride, dilation = transposed.stride, transposed.dilation
    # Phase and tap -> how many elements before the output's number the tap reads.
    places = {}
    for phase, tap in itertools.product(range(stride), range(transposed.taps)):
        place, rest = divmod(phase - shift + transposed.before - tap * dilation, stride)
        if rest == 0:
            places[phase, tap] = place
    numbers = -(-(outputs + shift) // stride)
    # Those that read zeros alone are left out, as on small maps.
    places = {key: place for key, place in places.items() if -numbers < place < transposed.size} or places
    step = math.gcd(*(place - min(places.values()) for place in places.values())) or 1
    # An ordinary convolution has no negative padding: zeros reach to both ends of the input.
    first, last = min(places.values()), max(places.values())
    first -= max(-(-first // step), 0) * step
    last += max(-(-(transposed.size - numbers - last) // step), 0) * step
    count = (last - first) // step + 1
    table = np.full((stride, count), -1)
    for (phase, tap), place in places.items():
        table[phase, (place - first) // step] = tap
    axis = Axis(transposed.size, count, 1, step, -first, numbers - transposed.size + last)
    return Phases(axis, stride, shift, outputs, tuple(map(tuple, table.tolist())))


def interleaved_weight(weight: np.ndarray, groups: int, phases: Sequence[Phases]) -> np.ndarray:
    """The weight (phases * K, C / groups, ...) of the ordinary convolution, of a transposed one's (C, K / groups, ...).

    In each group all filters of a phase lie together, as they do in the model: so do zeros that filters share.
    """
    c, k, *kernel = weight.shape
    found = weight.reshape(groups, c // groups, k, *kernel).swapaxes(1, 2)
    for i, each in enumerate(phases):
        # Each axis of taps becomes (phases, places).
        axis = 3 + 2 * i
        none = np.zeros_like(found.take([0], axis))
        found = np.concatenate([found, none], axis).take(np.array(each.taps), axis)
    axes = range(3, found.ndim)
    found = found.transpose(0, *axes[::2], 1, 2, *axes[1::2])
    count = math.prod(each.stride for each in phases)
    return np.ascontiguousarray(found).reshape(groups * count * k, c // groups, *found.shape[3 + len(phases) :])
