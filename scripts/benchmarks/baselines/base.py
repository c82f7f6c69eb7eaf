"""What all baselines share: how one is described, prepared for one convolution, and called.

A baseline receives its input in the layout and element type in which a network built around it would keep it, and
leaves its output likewise: `Prepared.load` and `Prepared.store` convert and are not timed, the call that
`Prepared.bind` makes is. Torch is imported by functions only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.spec import ConvSpec

Tensor = Any


class NotServed(Exception):
    """A baseline does not compute this convolution here; the message is the reason, as a sentence."""


@dataclass(frozen=True)
class Prepared:
    """A baseline, or a kernel of ours, made ready for one convolution and weight.

    Parameters
    ----------
    spec, weight
        What it computes, weight float32 (K, C / groups, R, S); a structurally pruned baseline has fewer channels.
    load
        Input (N, C', H, W) float32, of which it takes the first ``spec.c`` channels, -> input as the method keeps it.
    bind
        Loaded input -> call without arguments that computes the output, as the method leaves it. Buffers that the
        baseline owns are made by `bind` and hold NaN, so that an element that is never written shows.
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


@dataclass(frozen=True)
class Baseline:
    """One way to compute a convolution; kernels of ours take this form too, to be timed by the same code.

    Parameters
    ----------
    family, variant
        The method, and the name within it, such as the layout; a comparison takes the best variant.
    prepare
        (convolution, weight, torch device) -> `Prepared`; raises `NotServed` where the method does not compute it.
    exact
        Whether values are float32 throughout.
    tolerance
        Declared error as a fraction of the largest value; None: the element-wise bound of `conv.reference` holds.
    arithmetic
        How it computes, which decides that bound (`conv.error_bounds`).
    sparse
        Whether its time depends on the zeros.
    code_bytes, predicted_us
        Of GPU code made for this weight, and what a model of the machine predicts, where known: of kernels of ours.
    """

    family: str
    variant: str
    prepare: Callable[[ConvSpec, np.ndarray, Any], Prepared]
    exact: bool = True
    tolerance: float | None = None
    arithmetic: str = EXACT
    sparse: bool = False
    code_bytes: int | None = None
    predicted_us: float | None = None


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
    """Raise `NotServed` for a convolution with bias, residual or ReLU."""
    if spec.bias or spec.residual or spec.relu:
        raise NotServed("baselines compute the convolution alone, without bias, residual or ReLU")


def symmetric_padding(spec: ConvSpec, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """`x` (.., H, W) and the padding (height, width) that is left to apply on both sides alike.

    Torch pads both sides alike; any other padding is written into a copy, as torch users do it.
    """
    if spec.symmetric_padding is not None:
        return x, spec.symmetric_padding
    import torch

    top, left, bottom, right = spec.padding
    return torch.nn.functional.pad(x, (left, right, top, bottom)), (0, 0)
