"""Calls of Relax that are convolutions of other ranks, or transposed ones, with constant weights: what they compute."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm.ir import Call

from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.frontend.passes.model_form import ModelForm
from tvm_sparse.frontend.passes.ranks.phases import Axis, Phases, interleaved_weight
from tvm_sparse.frontend.passes.relax_graph import static_shape

# Every convolution has depth, height and width here.
RANK = 3


@dataclass(frozen=True)
class Convolution:
    """An ordinary convolution whose outputs interleave.

    * `weight`: (phases * K, C / groups, T, R, S), with kernels of depth T.
    * `phases`: of depth, height and width; of a convolution that is not transposed there is one phase.
    * `groups`: independent parts of the channels.
    """

    weight: np.ndarray
    phases: tuple[Phases, ...]
    groups: int

    @classmethod
    def of(
        cls,
        weight: np.ndarray,
        sizes: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        added: Sequence[int] | None = None,
    ) -> "Convolution":
        """Of a tensor of such `sizes` by a `weight` as the model has it; `padding` is before all axes, then behind all.

        A transposed one has `added` outputs behind each axis.
        """
        rank = len(sizes)
        fill = RANK - rank
        rows = zip(sizes, weight.shape[2:], stride, dilation, padding[:rank], padding[rank:], strict=True)
        axes = [Axis(1)] * fill + [Axis(*map(int, row)) for row in rows]
        weight = weight.reshape(*weight.shape[:2], *[1] * fill, *weight.shape[2:])
        if added is None:
            return cls(weight, tuple(Phases(each, outputs=each.outputs) for each in axes), groups)
        more = [0] * fill + [int(each) for each in added]
        phases = tuple(Phases.of(*each) for each in zip(axes, more, strict=True))
        return cls(interleaved_weight(weight, groups, phases), phases, groups)

    @classmethod
    def of_call(cls, call: Call, weight: np.ndarray) -> "Convolution":
        """What a call computes whose `other_weight` is `weight`."""
        attrs, sizes = call.attrs, (static_shape(call.args[0]) or ())[2:]
        added = getattr(attrs, "output_padding", None)
        return cls.of(weight, sizes, attrs.strides, attrs.padding, attrs.dilation, int(attrs.groups), added)

    def spec(self, images: int) -> ConvSpec:
        """The 2-D convolution of the maps of so many tensors."""
        (depth, y, x), (k, channels, r, s) = self.axes, self.flat_weight.shape
        n, c = images * depth.outputs, channels * self.groups
        stride, dilation = (y.stride, x.stride), (y.dilation, x.dilation)
        padding = (y.before, x.before, y.after, x.after)
        return ConvSpec(n, c, y.size, x.size, k, r, s, stride, padding, dilation, self.groups)

    def model_form(self, call: Call) -> ModelForm:
        """What a call of it is in the model, beside its `spec`."""
        attrs, depth = call.attrs, self.axes[0]
        sizes, kernel = ((static_shape(each) or ())[2:] for each in call.args)
        stride, dilation, added = (
            tuple(map(int, getattr(attrs, name, ()))) for name in ("strides", "dilation", "output_padding")
        )
        volumes = self.volumes
        form = ModelForm(
            tuple(sizes), tuple(kernel), stride, dilation, None, depth.outputs, taps=depth.taps, volumes=volumes
        )
        if not hasattr(attrs, "output_padding"):
            return form
        phases, used = (math.prod(getattr(each, name) for each in self.phases) for name in ("stride", "used"))
        return replace(form, output_padding=added, phases=phases, used=used, interleaving=self._interleaving)

    @property
    def volumes(self) -> Volumes | None:
        """How it reads the maps of volumes, where it does not read each map once."""
        depth = self.axes[0]
        if depth == Axis(depth.size):
            return None
        return Volumes(depth.size, depth.outputs, depth.taps, depth.stride, depth.dilation, depth.before)

    @property
    def axes(self) -> list[Axis]:
        """Of depth, height and width."""
        return [each.axis for each in self.phases]

    @property
    def is_interleaved(self) -> bool:
        """Whether the outputs of the ordinary convolution do not lie as they shall."""
        return any(each.outputs != each.axis.outputs or each.stride > 1 for each in self.phases)

    @property
    def _interleaving(self) -> Interleaving | None:
        """How outputs interleave, where those of a map do among each other."""
        depth, y, x = self.phases
        if not self.is_interleaved or depth.stride > 1 or depth.outputs != depth.axis.outputs:
            return None
        return Interleaving((y.stride, x.stride), (y.shift, x.shift), (y.outputs, x.outputs))

    @property
    def flat_weight(self) -> np.ndarray:
        """(phases * K, T * C / groups, R, S): taps of depth are channels, outermost in their group."""
        k, c, taps, *kernel = self.weight.shape
        return np.ascontiguousarray(self.weight.swapaxes(1, 2)).reshape(k, taps * c, *kernel)
