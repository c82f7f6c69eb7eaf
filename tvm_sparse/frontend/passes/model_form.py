"""Layers as a model has them, where kernels compute other convolutions than these: lines, volumes, transposed ones."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.volumes import Volumes

# What `ranks` makes of a convolution has two axes.
_MAP = 2


@dataclass(frozen=True)
class ModelForm:
    """A convolution of any rank, by what the 2-D one that computes it does not say; `sizes` are of its input's axes.

    * `kernel`, `stride`, `dilation`: along each axis.
    * `output_padding`: of a transposed one; None where it is none.
    * `depths`: maps of one volume that the 2-D one writes.
    * `phases`, `taps`: how many filters, and how many input channels, the 2-D one has in the place of one.
    * `used`: of a transposed one, how many of a kernel's taps read an input.
    * `interleaving`: of one whose outputs interleave along rows and columns alone, how.
    * `volumes`: how the 2-D one reads the maps of volumes, where it does not read each map once.
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...] | None = None
    depths: int = 1
    phases: int = 1
    taps: int = 1
    used: int = 0
    interleaving: Interleaving | None = None
    volumes: Volumes | None = None

    @classmethod
    def of_spec(cls, spec: ConvSpec) -> "ModelForm":
        """Of a convolution that is 2-D in the model too."""
        return cls((spec.h, spec.w), (spec.r, spec.s), spec.stride, spec.dilation)

    @classmethod
    def from_text(cls, text: str) -> "ModelForm":
        """What `to_text` was made of."""
        fields: dict[str, Any] = {
            name: tuple(value) if type(value) is list else value for name, value in json.loads(text).items()
        }
        if fields["interleaving"] is not None:
            fields["interleaving"] = Interleaving(*map(tuple, fields["interleaving"]))
        if fields["volumes"] is not None:
            fields["volumes"] = Volumes(*fields["volumes"])
        return cls(**fields)

    def to_text(self) -> str:
        """As a module's attribute has it."""
        return json.dumps(asdict(self))

    @property
    def kind(self) -> str:
        """What it is, such as ``1-D transposed convolution``."""
        rank = "" if len(self.sizes) == _MAP else f"{len(self.sizes)}-D "
        return f"{rank}{'' if self.output_padding is None else 'transposed '}convolution"

    def shape_text(self, spec: ConvSpec) -> str:
        """Input, filters, and what is unusual about it; `spec` is the convolution that computes it."""
        filters = _times((spec.k // self.phases, *self.kernel))
        parts = [_times((spec.n // self.depths, spec.c // self.taps, *self.sizes))]
        parts += [filters if self.output_padding is None else f"transposed {filters}"]
        for name, numbers, usual in (
            ("stride", self.stride, 1),
            ("dilation", self.dilation, 1),
            ("output padding", self.output_padding or (), 0),
        ):
            parts += [f"{name} {_times(numbers)}"] if any(each != usual for each in numbers) else []
        return ", ".join([*parts, *([f"groups {spec.groups}"] if spec.groups > 1 else [])])

    def size(self, spec: ConvSpec) -> int:
        """Weights that read an input."""
        if self.output_padding is None:
            return math.prod(spec.weight_shape)
        return spec.k // self.phases * (spec.c // self.taps // spec.groups) * self.used

    def weight(self, weight: np.ndarray, groups: int) -> np.ndarray:
        """`weight`, of the 2-D one, as (K, C / groups, R, S): all that belongs to a filter and channel of the model.

        It has zeros where the model has no weights.
        """
        k, c, r, s = weight.shape
        split = weight.reshape(groups, self.phases, k // self.phases // groups, self.taps, c // self.taps, r, s)
        return split.transpose(0, 2, 4, 1, 3, 5, 6).reshape(k // self.phases, c // self.taps, -1, s)


def _times(numbers: Iterable[int]) -> str:
    return "x".join(map(str, numbers))
