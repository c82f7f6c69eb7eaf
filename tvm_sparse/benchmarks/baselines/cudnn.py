"""Dense convolution with cuDNN, through torch: strict float32, TF32 and float16, in NCHW and in NHWC.

The fastest of cuDNN's algorithms is chosen at the first call (``torch.backends.cudnn.benchmark``). On a CPU torch
computes the same with oneDNN, for tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_sparse.benchmarks.baselines.base import (
    FLOAT32_TOLERANCE,
    ROUNDED_TOLERANCE,
    Peer,
    Prepared,
    Tensor,
    require_plain,
    settings,
    symmetric_padding,
)
from tvm_sparse.conv.spec import ConvSpec

PRECISIONS = ("fp32", "tf32", "fp16")
LAYOUTS = ("nchw", "nhwc")


@dataclass(frozen=True)
class Cudnn:
    """cuDNN in one precision and layout."""

    precision: str
    variant: str
    sparse: bool = False

    @property
    def family(self) -> str:
        return f"cudnn-{self.precision}"

    @property
    def exact(self) -> bool:
        return self.precision == "fp32"

    @property
    def tolerance(self) -> float:
        return FLOAT32_TOLERANCE if self.exact else ROUNDED_TOLERANCE

    def prepare(self, spec: ConvSpec, weight: np.ndarray, device: Any) -> Prepared:
        """Serves every convolution; asymmetric padding is a charged copy."""
        import torch

        require_plain(spec)
        layout = torch.channels_last if self.variant == "nhwc" else torch.contiguous_format
        dtype = torch.float16 if self.precision == "fp16" else torch.float32
        filters = torch.from_numpy(weight).to(device=device, dtype=dtype, memory_format=layout)
        flags = {"enabled": True, "benchmark": True, "deterministic": False, "allow_tf32": self.precision == "tf32"}

        def load(x: Tensor) -> Tensor:
            return x[:, : spec.c].to(dtype=dtype, memory_format=layout).contiguous(memory_format=layout)

        def call(x: Tensor) -> Tensor:
            with settings(torch.backends.cudnn, **flags):
                x, padding = symmetric_padding(spec, x)
                return torch.nn.functional.conv2d(x, filters, None, spec.stride, padding, spec.dilation, spec.groups)

        return Prepared(
            spec=spec,
            weight=weight,
            load=load,
            bind=lambda x: lambda: call(x),
            store=lambda y: y.float().contiguous(),
            weight_bytes=filters.nbytes,
        )


def peers() -> list[Peer]:
    """All precisions and layouts."""
    return [Cudnn(precision, layout) for precision in PRECISIONS for layout in LAYOUTS]
