"""Structurally pruned baselines: dense cuDNN with half the channels, half the filters, or both.

Dong et al. 2020 compare sparse kernels with these. They compute another, smaller convolution; what accuracy it keeps is
not part of the comparison.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tvm_sparse.benchmarks.baselines import cudnn
from tvm_sparse.benchmarks.baselines.base import Baseline, NotServed, Prepared
from tvm_sparse.conv.spec import ConvSpec

# Name -> divisor of the input channels, divisor of the filters.
CUTS = {"channels": (2, 1), "filters": (1, 2), "both": (2, 2)}


def halved(cut: str, dense: Baseline) -> Baseline:
    """A dense baseline on what is left of the convolution."""
    return replace(
        dense, family=f"half-{cut}-{dense.family.removeprefix('cudnn-')}", prepare=partial(_prepare, cut, dense)
    )


def _prepare(cut: str, dense: Baseline, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
    """Serves convolutions of one group whose channels or filters are even in number."""
    by_channels, by_filters = CUTS[cut]
    if spec.groups != 1:
        raise NotServed("groups tie channels to filters, so neither is halved alone")
    if spec.c % by_channels or spec.k % by_filters:
        raise NotServed(f"{spec.c} channels and {spec.k} filters cannot be halved ({cut})")
    left = replace(spec, c=spec.c // by_channels, k=spec.k // by_filters)
    return dense.prepare(left, np.ascontiguousarray(weight[: left.k, : left.c]), device)


def baselines() -> list[Baseline]:
    """Every cut in float32 and TF32 and both layouts."""
    dense = [cudnn.baseline(precision, layout) for precision in ("fp32", "tf32") for layout in cudnn.LAYOUTS]
    return [halved(cut, each) for cut in CUTS for each in dense]
