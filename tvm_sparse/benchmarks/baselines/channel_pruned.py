"""Structurally pruned rivals: dense cuDNN with half the channels, half the filters, or both.

Dong et al. 2020 compare sparse kernels with these. They compute another, smaller convolution; what accuracy it keeps is
not part of the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_sparse.benchmarks.baselines.base import NotServed, Peer, Prepared
from tvm_sparse.benchmarks.baselines.cudnn import LAYOUTS, Cudnn
from tvm_sparse.conv.spec import ConvSpec

# Name -> divisor of the input channels, divisor of the filters.
CUTS = {"channels": (2, 1), "filters": (1, 2), "both": (2, 2)}


@dataclass(frozen=True)
class Halved:
    """Dense cuDNN on what is left of the convolution."""

    cut: str
    dense: Cudnn
    sparse: bool = False

    @property
    def family(self) -> str:
        return f"half-{self.cut}-{self.dense.precision}"

    @property
    def variant(self) -> str:
        return self.dense.variant

    @property
    def exact(self) -> bool:
        return self.dense.exact

    @property
    def tolerance(self) -> float:
        return self.dense.tolerance

    def prepare(self, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
        """Serves convolutions of one group whose channels or filters are even in number."""
        by_channels, by_filters = CUTS[self.cut]
        if spec.groups != 1:
            raise NotServed("groups tie channels to filters, so neither is halved alone")
        if spec.c % by_channels or spec.k % by_filters:
            raise NotServed(f"{spec.c} channels and {spec.k} filters cannot be halved ({self.cut})")
        left = replace(spec, c=spec.c // by_channels, k=spec.k // by_filters)
        return self.dense.prepare(left, np.ascontiguousarray(weight[: left.k, : left.c]), device)


def peers() -> list[Peer]:
    """Every cut in float32 and TF32 and both layouts."""
    return [
        Halved(cut, Cudnn(precision, layout)) for cut in CUTS for precision in ("fp32", "tf32") for layout in LAYOUTS
    ]
