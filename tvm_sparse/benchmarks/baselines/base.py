"""What all rivals share: how a rival is described, prepared for one convolution, and called.

A rival receives its input in the layout and element type in which a network built around it would keep it, and leaves
its output likewise: `Prepared.load` and `Prepared.store` convert and are not timed, the call that `Prepared.bind` makes
is. Torch is imported by functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tvm_sparse.conv.spec import ConvSpec

Tensor = Any
# Largest error of a result as a fraction of the largest value, declared for methods that the element-wise bound of
# `tvm_sparse.reference` does not hold for: Winograd's and FFT's float32, and inputs rounded to 11 bits.
FLOAT32_TOLERANCE = 1e-4
ROUNDED_TOLERANCE = 2.0**-8


class NotServed(Exception):
    """A rival does not compute this convolution here; the message is the reason, as a sentence."""


@dataclass(frozen=True)
class Prepared:
    """A rival made ready for one convolution and weight.

    Parameters
    ----------
    spec, weight
        What it computes, weight float32 (K, C / groups, R, S); a structurally pruned rival has fewer channels.
    load
        Input (N, C', H, W) float32, of which it takes the first ``spec.c`` channels, -> input as the method keeps it.
    bind
        Loaded input -> call without arguments that computes the output, as the method leaves it. Buffers that the
        rival owns are made by `bind` and hold NaN, so that an element that is never written shows.
    store
        That output -> (N, K, OH, OW) float32.
    weight_bytes
        Of the weight as the method keeps it, indices included.
    detail
        What was chosen in preparing, for reports.
    """

    spec: ConvSpec
    weight: np.ndarray
    load: Callable[[Tensor], Tensor]
    bind: Callable[[Tensor], Callable[[], Tensor]]
    store: Callable[[Tensor], Tensor]
    weight_bytes: int
    detail: str = ""


class Peer(Protocol):
    """One way to compute a convolution.

    Rivals of one `family` are variants of one method, of which a comparison takes the best.
    """

    @property
    def family(self) -> str:
        """Name of the method."""

    @property
    def variant(self) -> str:
        """Name within the family, such as the layout."""

    @property
    def exact(self) -> bool:
        """Whether values are float32 throughout."""

    @property
    def tolerance(self) -> float | None:
        """Declared error as a fraction of the largest value; None: the element-wise bound of `tvm_sparse.reference`."""

    @property
    def sparse(self) -> bool:
        """Whether its time depends on the zeros."""

    def prepare(self, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
        """Make ready for one convolution on a torch device; `NotServed` where the method does not compute it."""


@contextmanager
def settings(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes of one of ``torch.backends`` with other values, put back afterwards."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def require_plain(spec: ConvSpec) -> None:
    """Raise `NotServed` for a convolution with bias, residual or ReLU: rivals are compared without an epilogue."""
    if spec.bias or spec.residual or spec.relu:
        raise NotServed("rivals compute the convolution alone, without bias, residual or ReLU")


def symmetric_padding(spec: ConvSpec, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """`x` (.., H, W) and the padding (height, width) that is left to apply on both sides alike.

    Torch pads both sides alike; any other padding is written into a copy, as torch users do it.
    """
    top, left, bottom, right = spec.padding
    if top == bottom and left == right:
        return x, (top, left)
    import torch

    return torch.nn.functional.pad(x, (left, right, top, bottom)), (0, 0)
