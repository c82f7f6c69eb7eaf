"""Escort: direct sparse convolution on the GPU (Chen 2018, arXiv 1802.10280), the kernels of ``escort.cu``.

Two baselines. ``escort`` copies the input into padded memory at every call, as published; ``escort-prepadded`` is given
padded inputs, as if the layer before had written them so. Launch parameters are the published 16 x 16 pixels and one or
two images a thread, and others that suit today's GPUs; the fastest for the convolution at hand is found in preparing,
as cuDNN's benchmark mode does.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np

from benchmarks.baselines.base import Baseline, NotServed, Prepared, Tensor, require_plain
from benchmarks.baselines.escort_kernels import LAUNCHES, Geometry, Kernels, Launch
from tvm_sparse.conv.sparsity import digest
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.tir_writing import stretch

MAX_GRID = 65535
# The launch for a convolution and the digest of its weight; baselines that share one choose once.
Chosen = dict[tuple[ConvSpec, str], Launch]


def baseline(prepadded: bool, kernels: Kernels | None, chosen: Chosen) -> Baseline:
    """Escort with the padded copy charged or not; `kernels` None serves nothing, `chosen` remembers launches."""
    family = "escort-prepadded" if prepadded else "escort"
    return Baseline(family, "", partial(_prepare, prepadded, kernels, chosen), sparse=True)


def _prepare(
    prepadded: bool, kernels: Kernels | None, chosen: Chosen, spec: ConvSpec, weight: np.ndarray, device: Any
) -> Prepared:
    """Serves every convolution that one launch can index; see `_require_served`."""
    if kernels is None:
        raise NotServed("Escort's kernels are compiled by nvcc for an NVIDIA GPU")
    _require_served(spec, prepadded)
    layer = _Layer(spec, weight, device, kernels)
    key = (spec, digest(weight))
    if key not in chosen:
        chosen[key] = layer.fastest()
    launch = chosen[key]

    def bind(x: Tensor) -> Callable[[], Tensor]:
        y = layer.new_output()
        padded = x if prepadded or not any(spec.padding) else layer.padded

        def call() -> Tensor:
            if padded is not x:
                kernels.copy_interior(layer.geometry, x, padded)
            layer.convolve(launch, padded, y)
            return y

        return call

    def load(x: Tensor) -> Tensor:
        x = x.contiguous()
        if not prepadded:
            return x
        padded = layer.padded.clone()
        kernels.copy_interior(layer.geometry, x, padded)
        return padded

    return Prepared(spec, weight, load, bind, lambda y: y, layer.weight_bytes, str(launch))


class _Layer:
    """One convolution's arrays on the device."""

    def __init__(self, spec: ConvSpec, weight: np.ndarray, device: Any, kernels: Kernels):
        import torch

        self.spec, self.device, self.kernels = spec, device, kernels
        self.geometry = Geometry.of(spec)
        c, r, s = np.ogrid[: spec.c, : spec.r, : spec.s]
        places = c * self.geometry.plane + r * spec.dilation[0] * self.geometry.pitch + s * spec.dilation[1]
        values, offsets, rows = stretch(weight, places)
        self.taps, self.rows = (
            torch.from_numpy(array).to(device) for array in (np.stack([values.view(np.int32), offsets], axis=1), rows)
        )
        self.weight_bytes = self.taps.nbytes + self.rows.nbytes

    def new_output(self) -> Tensor:
        import torch

        return torch.full(self.spec.output_shape, float("nan"), device=self.device)

    @cached_property
    def padded(self) -> Tensor:
        """Padded memory whose zeros are written; all calls of a layer share it."""
        import torch

        return torch.zeros(self.geometry.padded_size(self.spec), device=self.device)

    def convolve(self, launch: Launch, padded: Tensor, y: Tensor) -> None:
        self.kernels.convolve(launch, self.geometry, padded, self.taps, self.rows, y)

    def fastest(self) -> Launch:
        """The launch that takes the least time on zeros; the first one where there is no GPU to time."""
        launches = [launch for launch in LAUNCHES if launch.images <= self.spec.n and launch.rows <= self.spec.out_h]
        if self.device.type != "cuda":
            return launches[0]
        y = self.new_output()
        return min(launches, key=lambda launch: self._time_ms(launch, y))

    def _time_ms(self, launch: Launch, y: Tensor) -> float:
        """Of three calls, after one that may load the kernel."""
        import torch

        self.convolve(launch, self.padded, y)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(3):
            self.convolve(launch, self.padded, y)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def _require_served(spec: ConvSpec, prepadded: bool) -> None:
    require_plain(spec)
    if prepadded and not any(spec.padding):
        raise NotServed("there is no padding, so the padded copy is not made anyway")
    largest = max(Geometry.of(spec).padded_size(spec), int(np.prod(spec.output_shape)))
    if largest >= 2**31:
        raise NotServed(f"a buffer of {largest} floats exceeds 32-bit indices")
    if max(spec.k, spec.n, -(-spec.out_h // 8) * -(-spec.out_w // 8)) > MAX_GRID:
        raise NotServed("filters, images or tiles exceed what one launch can number")


def baselines(kernels: Kernels | None) -> list[Baseline]:
    """Both, which choose their launches together."""
    chosen: Chosen = {}
    return [baseline(prepadded, kernels, chosen) for prepadded in (False, True)]
