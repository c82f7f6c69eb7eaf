"""A convolution's input as tensor cores read it: channels last, in whole groups, and nothing that is not read.

A convolution with a stride is one without, of fewer pixels with more channels: those ``stride`` apart in a row, its
phases, become channels of one pixel ("space to depth"). An image of 3 channels, of which tensor cores would read a
group for every tap, so becomes one of 12 with a stride of 2.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE

# Tensor cores read inputs in groups of so many bytes, and cuDNN's kernels multiply so many channels of a tap at once.
_GROUP_BYTES, _STEP = 16, 16


def channel_group(spec: ConvSpec) -> int:
    """In groups of how many channels tensor cores read inputs."""
    return _GROUP_BYTES // STORAGE[spec.dtype].size_bytes


def writes_groups(spec: ConvSpec) -> bool:
    """Whether tensor cores write its outputs in such groups: a convolution of maps, not of lines."""
    return spec.groups == 1 and not spec.k % channel_group(spec) and spec.h * spec.w > 1


def rounded_up(count: int, group: int) -> int:
    """The next multiple of `group`."""
    return -(-count // group) * group


@dataclass(frozen=True)
class StagedInput:
    """How the input of `spec`, a convolution of one group, is written anew.

    * `layout`: of the input as it is.
    """

    spec: ConvSpec
    layout: Literal["nchw", "nhwc"] = "nchw"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "StagedInput":
        """What `dataclasses.asdict` made that of."""
        return cls(**{**values, "spec": ConvSpec.from_json(values["spec"])})

    @cached_property
    def step(self) -> tuple[int, int]:
        """Rows and columns of the input from one pixel to the next; with 1 all strides stay the convolution's."""
        spec = self.spec
        if spec.stride == (1, 1) or any(d > 1 < taps for d, taps in zip(spec.dilation, (spec.r, spec.s), strict=True)):
            return 1, 1
        phases, (r, s) = _phases(spec, spec.stride), _taps(spec, spec.stride)
        as_channels = r * s * rounded_up(spec.c * math.prod(phases), _STEP)
        return spec.stride if as_channels <= spec.r * spec.s * rounded_up(spec.c, _STEP) else (1, 1)

    @property
    def phases(self) -> tuple[int, int]:
        """Rows and columns of the input that become channels of one pixel."""
        return _phases(self.spec, self.step)

    @property
    def pads(self) -> bool:
        """Whether the padding is written too: cuDNN itself pads both sides alike."""
        return self.step != (1, 1) or self.spec.symmetric_padding is None

    @property
    def values(self) -> int:
        """Of a pixel, in the order (row, column, channel)."""
        return math.prod(self.phases) * self.spec.c

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C) of what is written, whole groups of channels, the last ones zeros."""
        spec, (h, w) = self.spec, self.spec.input_shape[2:]
        if self.step != (1, 1):
            r, s = _taps(spec, self.step)
            h, w = spec.out_h + r - 1, spec.out_w + s - 1
        elif self.pads:
            h, w = spec.padded_shape[2:]
        return spec.n, h, w, rounded_up(self.values, channel_group(spec))

    @cached_property
    def read(self) -> ConvSpec:
        """The convolution of what is written, with the same output."""
        (_, h, w, c), spec = self.shape, replace(self.spec, volumes=None)
        if self.step != (1, 1):
            r, s = _taps(spec, self.step)
            return replace(spec, c=c, h=h, w=w, r=r, s=s, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1))
        return replace(spec, c=c, h=h, w=w, padding=(0, 0, 0, 0)) if self.pads else replace(spec, c=c)

    def weight(self, weight: np.ndarray) -> np.ndarray:
        """A weight (K, C, R, S) as `read` takes it, (K, R, S, C)."""
        spec, (step_h, step_w), (rows, columns) = self.spec, self.step, self.phases
        r, s = _taps(spec, self.step)
        whole = np.pad(weight, ((0, 0), (0, 0), (0, r * step_h - spec.r), (0, s * step_w - spec.s)))
        phases = whole.reshape(spec.k, spec.c, r, step_h, s, step_w)[:, :, :, :rows, :, :columns]
        values = phases.transpose(0, 2, 4, 3, 5, 1).reshape(spec.k, r, s, self.values)
        return np.pad(values, ((0, 0), (0, 0), (0, 0), (0, self.shape[3] - values.shape[3])))


def _phases(spec: ConvSpec, step: tuple[int, int]) -> tuple[int, int]:
    return min(spec.r, step[0]), min(spec.s, step[1])


def _taps(spec: ConvSpec, step: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the weight of which each has taps for all phases."""
    return -(-spec.r // step[0]), -(-spec.s // step[1])
