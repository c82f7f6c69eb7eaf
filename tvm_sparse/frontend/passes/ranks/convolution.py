"""Calls of Relax that are convolutions of other ranks, or transposed ones, with constant weights: what they compute."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.ir import Call

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.passes.ranks.phases import Axis, Phases, interleaved_weight
from tvm_sparse.frontend.passes.relax_graph import static_shape

# Every convolution has depth, height and width here.
RANK = 3


def shape_text(call: Call) -> str:
    """The convolution as the model has it: input, filters, and what is unusual about it."""
    attrs, (_, k, *_) = call.attrs, static_shape(call) or ()
    kernel = (static_shape(call.args[1]) or ())[2:]
    kind = "transposed " if hasattr(attrs, "output_padding") else ""
    parts = [_sizes(static_shape(call.args[0]) or ()), kind + _sizes((k, *kernel))]
    for name, numbers, usual in (
        ("stride", attrs.strides, 1),
        ("dilation", attrs.dilation, 1),
        ("output padding", getattr(attrs, "output_padding", ()), 0),
    ):
        parts += [f"{name} {_sizes(numbers)}"] if any(int(each) != usual for each in numbers) else []
    return ", ".join([*parts, *([f"groups {attrs.groups}"] if attrs.groups > 1 else [])])


def _sizes(numbers: Iterable[int]) -> str:
    return "x".join(str(int(each)) for each in numbers)


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

    @property
    def axes(self) -> list[Axis]:
        """Of depth, height and width."""
        return [each.axis for each in self.phases]

    @property
    def is_interleaved(self) -> bool:
        """Whether the outputs of the ordinary convolution do not lie as they shall."""
        return any(each.outputs != each.axis.outputs or each.stride > 1 for each in self.phases)

    @property
    def flat_weight(self) -> np.ndarray:
        """(phases * K, T * C / groups, R, S): taps of depth are channels, outermost in their group."""
        k, c, taps, *kernel = self.weight.shape
        return np.ascontiguousarray(self.weight.swapaxes(1, 2)).reshape(k, taps * c, *kernel)
