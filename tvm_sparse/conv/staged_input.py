"""A convolution's input as tensor cores read it: channels last, in whole groups, and nothing that is not read.

A convolution with a stride is one without, of fewer pixels with more channels: those ``stride`` apart in a row, its
phases, become channels of one pixel ("space to depth"). An image of 3 channels, of which tensor cores would read a
group for every tap, so becomes one of 12 with a stride of 2. Or all that the taps of a row read are channels of one
pixel, and no taps beside each other are left: films of three channels, of which three maps are read by 7x7 taps, have
63 channels then.
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
# Products that take as long as to write a value and to read it again.
_WRITTEN = 200
# Of so many values or more, and so many outputs, the taps of a row are channels of one pixel: 63 of r3d_18's first
# layer take 229 us for 330 with eight films, 36 for 50 with one (an H200). Of 21 ResNet-50's take 681 for 451 at batch
# 64, and of 30 to 49, with 26,000 outputs, cuDNN takes a kernel that is three to four times as slow.
_LEAST_IN_ONE, _LEAST_OUTPUTS = 56, 40_000


def channel_group(spec: ConvSpec) -> int:
    """In groups of how many channels tensor cores read inputs."""
    return _GROUP_BYTES // STORAGE[spec.dtype].size_bytes


def writes_groups(spec: ConvSpec) -> bool:
    """Whether tensor cores write its outputs in such groups: a convolution of maps, not of lines."""
    return spec.groups == 1 and not spec.k % channel_group(spec) and spec.h * spec.w > 1


def has_whole_groups(spec: ConvSpec) -> bool:
    """Whether they also read its input in whole groups, as it lies."""
    return writes_groups(spec) and not spec.c % channel_group(spec)


def rounded_up(count: int, group: int) -> int:
    """The next multiple of `group`."""
    return -(-count // group) * group


@dataclass(frozen=True)
class StagedInput:
    """How the input of `spec`, a convolution of one group, is written anew.

    * `layout`: of the input as it is: of maps, or the volumes that these are of.
    """

    spec: ConvSpec
    layout: Literal["nchw", "nhwc", "ncdhw"] = "nchw"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "StagedInput":
        """What `dataclasses.asdict` made that of."""
        return cls(**{**values, "spec": ConvSpec.from_json(values["spec"])})

    @cached_property
    def _axes(self) -> "tuple[_Axis, _Axis]":
        """Rows and columns, as fewest products and values are left."""
        spec = self.spec
        down, right = (_Axis(*each) for each in zip((spec.r, spec.s), spec.stride, spec.dilation, strict=True))
        found = [(down, right)]
        if spec.stride != (1, 1) and down.is_near and right.is_near:
            found.append((down.by_phases, right.by_phases))
        is_large = spec.c * spec.s >= _LEAST_IN_ONE and spec.n * spec.out_h * spec.out_w >= _LEAST_OUTPUTS
        if spec.s > 1 and right.is_near and is_large:
            found.append((down, right.in_one))
        return min(found, key=self._cost)

    def _cost(self, axes: "tuple[_Axis, _Axis]") -> float:
        """Of an output, in products of a tap and channel with all filters."""
        taps, phases = (math.prod(getattr(each, name) for each in axes) for name in ("left", "phases"))
        steps = [each.stride // each.step for each in axes]
        values = self.spec.c * phases
        return taps * rounded_up(values, _STEP) + values * math.prod(steps) * _WRITTEN / self.spec.k

    @property
    def step(self) -> tuple[int, int]:
        """Rows and columns of the input from one pixel to the next; with 1 all strides stay the convolution's."""
        down, right = self._axes
        return down.step, right.step

    @property
    def phases(self) -> tuple[int, int]:
        """Rows and columns of the input that become channels of one pixel."""
        down, right = self._axes
        return down.phases, right.phases

    @property
    def has_rows_in_one(self) -> bool:
        """Whether all that the taps of a row read are channels of one pixel."""
        down, right = self._axes
        return down.span == 1 < right.span == right.taps

    @property
    def pads(self) -> bool:
        """Whether the padding is written too: cuDNN itself pads both sides alike."""
        return any(each.span > 1 or each.step > 1 for each in self._axes) or self.spec.symmetric_padding is None

    @property
    def given_shape(self) -> tuple[int, ...]:
        """Of the input as it is."""
        (n, c, h, w), volumes = self.spec.input_shape, self.spec.volumes
        if self.layout == "ncdhw":
            assert volumes is not None, "only volumes have depth"
            return n // volumes.size, c, volumes.size, h, w
        return (n, c, h, w) if self.layout == "nchw" else (n, h, w, c)

    @property
    def values(self) -> int:
        """Of a pixel, in the order (row, column, channel)."""
        return math.prod(self.phases) * self.spec.c

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C) of what is written, whole groups of channels, the last ones zeros."""
        spec = self.spec
        padded, outputs = spec.padded_shape[2:], (spec.out_h, spec.out_w)
        h, w = (
            (each.pixels(*sizes) for each, *sizes in zip(self._axes, padded, outputs, strict=True))
            if self.pads
            else spec.input_shape[2:]
        )
        return spec.n, h, w, rounded_up(self.values, channel_group(spec))

    @cached_property
    def read(self) -> ConvSpec:
        """The convolution of what is written, with the same output."""
        (_, h, w, c), spec = self.shape, replace(self.spec, volumes=None)
        r, s = (each.left for each in self._axes)
        stride, dilation = (
            tuple(getattr(each, name) for each in self._axes) for name in ("left_stride", "left_dilation")
        )
        spec = replace(spec, c=c, h=h, w=w, r=r, s=s, stride=stride, dilation=dilation)
        return replace(spec, padding=(0, 0, 0, 0)) if self.pads else spec

    def weight(self, weight: np.ndarray) -> np.ndarray:
        """A weight (K, C, R, S) as `read` takes it, (K, R, S, C)."""
        spec, (down, right) = self.spec, self._axes
        more = [(0, each.left * each.span - each.taps) for each in self._axes]
        whole = np.pad(weight, ((0, 0), (0, 0), *more))
        split = whole.reshape(spec.k, spec.c, down.left, down.span, right.left, right.span)
        phases = split[:, :, :, : down.phases, :, : right.phases]
        values = phases.transpose(0, 2, 4, 3, 5, 1).reshape(spec.k, down.left, right.left, self.values)
        return np.pad(values, ((0, 0), (0, 0), (0, 0), (0, self.shape[3] - values.shape[3])))


@dataclass(frozen=True)
class _Axis:
    """Rows or columns: of `taps`, `span` beside each other are channels of one pixel, `step` from the next one."""

    taps: int
    stride: int
    dilation: int
    span: int = 1
    step: int = 1

    @property
    def is_near(self) -> bool:
        """Whether taps read neighbours."""
        return self.dilation == 1 or self.taps == 1

    @property
    def by_phases(self) -> "_Axis":
        """With the phases of the stride as channels."""
        return replace(self, span=self.stride, step=self.stride)

    @property
    def in_one(self) -> "_Axis":
        """With all taps as channels."""
        return replace(self, span=self.taps, step=self.stride)

    @property
    def phases(self) -> int:
        """Values of a pixel, of which it may have fewer than `span`."""
        return min(self.taps, self.span)

    @property
    def left(self) -> int:
        """Taps of the convolution of what is written."""
        return -(-self.taps // self.span)

    @property
    def left_stride(self) -> int:
        """Its stride."""
        return self.stride // self.step

    @property
    def left_dilation(self) -> int:
        """Its dilation."""
        return self.dilation if (self.span, self.step) == (1, 1) else 1

    def pixels(self, padded: int, outputs: int) -> int:
        """Of what is written: all, or those that taps read."""
        return padded if (self.span, self.step) == (1, 1) else outputs + self.left - 1
