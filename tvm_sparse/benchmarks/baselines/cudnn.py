"""Dense convolution with cuDNN, through torch: strict float32, TF32 and float16, in NCHW and in NHWC.

The fastest of cuDNN's algorithms is chosen at the first call (``torch.backends.cudnn.benchmark``). On a CPU torch
computes the same with oneDNN, for tests.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tvm_sparse.benchmarks.baselines.base import Baseline, Prepared, Tensor, require_plain, settings, symmetric_padding
from tvm_sparse.benchmarks.references import FLOAT32_TOLERANCE, ROUNDED_TOLERANCE
from tvm_sparse.conv.spec import ConvSpec

PRECISIONS = ("fp32", "tf32", "fp16")
LAYOUTS = ("nchw", "nhwc")


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


def baselines() -> list[Baseline]:
    """All precisions and layouts."""
    return [baseline(precision, layout) for precision in PRECISIONS for layout in LAYOUTS]
