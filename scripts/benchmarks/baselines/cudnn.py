"""Dense convolution with cuDNN, through torch: strict float32, TF32 and float16, in NCHW and in NHWC.

The fastest of cuDNN's algorithms is chosen at the first call (``torch.backends.cudnn.benchmark``). On a CPU torch
computes the same with oneDNN, for tests.

Also structurally pruned, with half the channels, half the filters, or both, as Dong et al. 2020 compare sparse kernels
with. These compute another, smaller convolution; what accuracy it keeps is not part of the comparison.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.baselines.base import Baseline, NotServed, Prepared, Tensor, require_plain, settings, symmetric_padding
from benchmarks.references import FLOAT32_TOLERANCE, ROUNDED_TOLERANCE
from tvm_sparse.conv.spec import ConvSpec

PRECISIONS = ("fp32", "tf32", "fp16")
LAYOUTS = ("nchw", "nhwc")
# Name -> divisor of the input channels, divisor of the filters.
CUTS = {"channels": (2, 1), "filters": (1, 2), "both": (2, 2)}


def baseline(precision: str, layout: str) -> Baseline:
    """cuDNN in one precision and layout."""
    exact = precision == "fp32"
    tolerance = FLOAT32_TOLERANCE if exact else ROUNDED_TOLERANCE
    return Baseline(f"cudnn-{precision}", layout, partial(_prepare, precision, layout), exact, tolerance)


def _prepare(precision: str, layout: str, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
    """Serves every convolution; asymmetric padding is a charged copy."""
    import torch

    require_plain(spec)
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    dtype = torch.float16 if precision == "fp16" else torch.float32
    filters = torch.from_numpy(weight).to(device=device, dtype=dtype, memory_format=memory_format)
    flags = {"enabled": True, "benchmark": True, "deterministic": False, "allow_tf32": precision == "tf32"}

    def load(x: Tensor) -> Tensor:
        x = x[:, : spec.c].to(dtype=dtype, memory_format=memory_format)
        return x.contiguous(memory_format=memory_format)

    def call(x: Tensor) -> Tensor:
        with settings(torch.backends.cudnn, **flags):
            x, padding = symmetric_padding(spec, x)
            return torch.nn.functional.conv2d(x, filters, None, spec.stride, padding, spec.dilation, spec.groups)

    return Prepared(
        spec, weight, load, lambda x: lambda: call(x), lambda y: y.float().contiguous(), weight_bytes=filters.nbytes
    )


def halved(cut: str, dense: Baseline) -> Baseline:
    """A dense baseline on what is left of the convolution."""
    return replace(dense, family=dense.family.replace("cudnn", f"half-{cut}"), prepare=partial(_halve, cut, dense))


def _halve(cut: str, dense: Baseline, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
    """Serves convolutions of one group whose channels or filters are even in number."""
    by_channels, by_filters = CUTS[cut]
    if spec.groups != 1:
        raise NotServed("groups tie channels to filters, so neither is halved alone")
    if spec.c % by_channels or spec.k % by_filters:
        raise NotServed(f"{spec.c} channels and {spec.k} filters cannot be halved ({cut})")
    left = replace(spec, c=spec.c // by_channels, k=spec.k // by_filters)
    return dense.prepare(left, np.ascontiguousarray(weight[: left.k, : left.c]), device)


def baselines() -> list[Baseline]:
    """All precisions and layouts, and every cut in float32 and TF32."""
    whole = [baseline(precision, layout) for precision in PRECISIONS for layout in LAYOUTS]
    return whole + [halved(cut, each) for cut in CUTS for each in whole if "fp16" not in each.family]
