"""Dense convolution for CUDA by NVIDIA's cuDNN, with bias, residual and ReLU: the baseline that a user has today.

Nothing is compiled: the kernel is a call of `cudnn.packed_function`. There are two variants. ``fp32`` computes in
float32 throughout; ``tf32`` may round inputs to TF32 for the tensor cores, which torch allows by default. Tensors of
half precision have one, ``fp16`` or ``bf16``, on tensor cores with float32 sums.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv.error_bounds import TF32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import MAX_ELEMENTS, ConvSpec
from tvm_sparse.conv.staged_input import StagedInput, channel_group, has_whole_groups
from tvm_sparse.conv.storage import is_half, stored
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.cudnn import library
from tvm_sparse.cudnn.plan import ALGORITHMS, PRECOMP, SUGGESTIONS, Plan
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.cudnn_calls import convolution_call
from tvm_sparse.scheduling.family import HALF_ARITHMETIC, HALF_VARIANTS, TF32_VARIANT, Code, KernelFamily
from tvm_sparse.scheduling.space import Choose, Decisions, NotApplicable, Space, WrittenSpace
from tvm_sparse.target.gpu import gpu_info

NAME = "dense_cudnn"
FP32 = "fp32"
# What people call the variants.
_TITLES = {
    FP32: "cuDNN float32",
    TF32_VARIANT: "cuDNN TF32",
    **{variant: f"cuDNN {dtype}" for dtype, variant in HALF_VARIANTS.items()},
}
_ARITHMETIC = {TF32_VARIANT: TF32, **HALF_ARITHMETIC}


class Layout(IntEnum):
    """In which cuDNN computes; staged: a kernel of ours writes the input anew, for the tensor cores."""

    NCHW = 0
    NHWC = 1
    NHWC_STAGED = 2


# As cuDNN numbers them, and behind them its suggestions by their ranks; of these the first ones are tried.
_NUMBERS = {name.upper(): number for number, name in enumerate((*ALGORITHMS, *SUGGESTIONS))}
Algorithm = IntEnum("Algorithm", _NUMBERS)  # type: ignore[misc]
TRIED = tuple(SUGGESTIONS)[:8]
# Where one of these takes so much less than cuDNN's own choice, its heuristics do not know the layer: all are tried
# (docs/lab/cuda-half.md, "Does cuDNN choose its best kernel?").
SURPRISE = 1.1


class Epilogue(IntEnum):
    """Whether the convolution's own call adds bias and residual and applies the ReLU."""

    FUSED = 0
    APART = 1


def why_not_here() -> str:
    """Why this machine cannot run it, as a sentence; empty if it has cuDNN."""
    return "" if library.find() is not None else f"{library.NOT_FOUND}: {library.INSTALL}"


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """The variants for the tensors' type, ``fp32`` before ``tf32``.

    NotApplicable where cuDNN is not on this machine.
    """
    if why_not_here():
        raise NotApplicable(why_not_here())
    if is_half(spec.dtype):
        return [CudnnSpace(spec, HALF_VARIANTS[spec.dtype])]
    found: list[Space] = [CudnnSpace(spec, FP32)]
    # Tensor cores have TF32 from compute capability 8.0 on (CUDA programming guide).
    if gpu_info(target).compute_capability >= 80:
        found.append(CudnnSpace(spec, TF32_VARIANT))
    return found


def may_stage(spec: ConvSpec, variant: str) -> bool:
    """Whether tensor cores shall read an input that is written anew, as it is read in whole groups of channels only.

    An image has three channels; of volumes that one tap with a stride reads cuDNN itself converts all pixels.
    """
    if variant == FP32 or spec.groups > 1 or (spec.c % channel_group(spec) == 0 and not _reads_some(spec)):
        return False
    return math.prod(StagedInput(spec).shape) <= MAX_ELEMENTS


def _reads_some(spec: ConvSpec) -> bool:
    volumes = spec.volumes
    if volumes is None:
        return False
    return (volumes.taps, spec.r, spec.s) == (1, 1, 1) and max(volumes.stride, *spec.stride) > 1


class CudnnSpace(WrittenSpace):
    """The space of one precision; all that is worth measuring is in `starts`."""

    def __init__(self, spec: ConvSpec, precision: str):
        super().__init__(NAME, precision)
        self.spec = spec

    def apply(self, sch: Schedule, choose: Choose) -> None:
        algorithms = [each for each in Algorithm if self._offers(each.name.lower())]
        layouts = [each for each in Layout if each != Layout.NHWC_STAGED or may_stage(self.spec, self.variant)]
        self.decide(sch, choose, "layout", layouts, self._own_layout)
        self.decide(sch, choose, "algorithm", algorithms, ALGORITHMS[PRECOMP])
        self.decide(sch, choose, "epilogue", Epilogue, Epilogue.FUSED)

    def _offers(self, algorithm: str) -> bool:
        """Whether an algorithm serves the variant; cuDNN's suggestions are for tensor cores, and tried of maps only."""
        if algorithm in SUGGESTIONS:
            return self.variant != FP32 and self.spec.volumes is None
        return self.variant == FP32 or algorithm == PRECOMP

    @property
    def _own_layout(self) -> Layout:
        """In half precision cuDNN has kernels for NHWC alone, and converts weights too in each call of NCHW.

        That takes 1.5 times as long in the mean of 39 convolutions at batch 1, 1.2 times of 31 at batch 64 (an H200).
        """
        return Layout.NHWC if is_half(self.spec.dtype) and has_whole_groups(self.spec) else Layout.NCHW

    def starts(self) -> list[Decisions]:
        layouts = sorted((Layout.NCHW, Layout.NHWC), key=lambda layout: layout != self._own_layout)
        found = [(layout.name.lower(), PRECOMP, "fused") for layout in layouts]
        spec = self.spec
        if may_stage(spec, self.variant):
            found.append(("nhwc_staged", PRECOMP, "fused"))
        found += [(self._suggested_layout, each, "fused") for each in TRIED if self._offers(each)]
        if self.variant == FP32 and (spec.relu or not (spec.bias or spec.residual)):
            # Without a ReLU cuDNN fuses an epilogue with the other algorithm only.
            found.append(("nchw", "implicit_gemm", "fused"))
        # Apart, what is added would be added to a result that half precision has rounded before.
        may_part = not is_half(spec.dtype) or not (spec.bias or spec.residual)
        if may_part and (spec.bias or spec.residual or spec.relu):
            # For convolutions of which cuDNN fuses no epilogue.
            found.append(("nchw", PRECOMP, "apart"))
        return [dict(zip(("layout", "algorithm", "epilogue"), each, strict=True)) for each in found]

    @property
    def _suggested_layout(self) -> str:
        return "nhwc_staged" if may_stage(self.spec, self.variant) else "nhwc"

    def more_starts(self, time_us: Callable[[Decisions], float | None]) -> list[Decisions]:
        if not self._offers(TRIED[0]):
            return []
        others = {"layout": self._suggested_layout, "epilogue": "fused"}
        made = {name: {**others, "algorithm": name} for name in (PRECOMP, *SUGGESTIONS)}
        own_us = time_us(made.pop(PRECOMP))
        least_us = min((us for name in TRIED if (us := time_us(made[name])) is not None), default=math.inf)
        is_surprising = own_us is not None and own_us > SURPRISE * least_us
        return [made[name] for name in made if name not in TRIED] if is_surprising else []

    def packed(self, weight: np.ndarray, decisions: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        plan, weight = self._plan(decisions), stored(weight, self.spec.dtype)
        if plan.staged is not None:
            laid_out = np.ascontiguousarray(plan.staged.weight(weight))
        else:
            laid_out = weight if plan.layout == "nchw" else self._channels_last(weight)
        # A fused epilogue always adds a bias.
        no_bias = "bias" in plan.arguments and not self.spec.bias
        return (laid_out, np.zeros(self.spec.k, self.spec.dtype)) if no_bias else (laid_out,)

    def _channels_last(self, weight: np.ndarray) -> np.ndarray:
        """(K, R, S, C / groups), of volumes (K, T, R, S, C / groups) in an array of that shape."""
        k, c, r, s = weight.shape
        taps = self.spec.volumes.taps if self.spec.volumes is not None else 1
        split = weight.reshape(k, taps, c // taps, r, s).transpose(0, 1, 3, 4, 2)
        return np.ascontiguousarray(split).reshape(k, r, s, c)

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        return convolution_call(self._plan(decisions))

    def _plan(self, decisions: Mapping[str, Any]) -> Plan:
        plan = Plan(self.spec, tf32=self.variant == TF32_VARIANT, **decisions)
        if reads_volumes(self.spec, decisions).volumes != self.spec.volumes:
            raise BuildError(f"schedule {self.name}", "cuDNN reads volumes in NHWC only", plan.layout)
        if decisions["layout"] != Layout.NHWC_STAGED.name.lower():
            return plan
        staged = StagedInput(self.spec)
        return replace(plan, spec=staged.read, layout="nhwc", staged=staged)


def reads_volumes(spec: ConvSpec, decisions: Any) -> ConvSpec:
    """`spec` in NHWC, where volumes lie as cuDNN has them, and are padded alike at both ends, else without volumes.

    What is written anew is so from any volumes.
    """
    volumes, nhwc, staged = spec.volumes, *(each.name.lower() for each in (Layout.NHWC, Layout.NHWC_STAGED))
    layout = nhwc if decisions is None else decisions.get("layout")
    is_whole = volumes is not None and volumes.is_symmetric and spec.symmetric_padding is not None
    return spec if layout == staged or (layout == nhwc and is_whole) else replace(spec, volumes=None)


def in_nhwc(spec: ConvSpec, volumes: Volumes | None) -> ConvSpec:
    """`spec` as its kernels in NHWC compute it, whose input is made of the maps of `volumes`."""
    spec = replace(spec, volumes=volumes)
    return reads_volumes(spec, {"layout": layout_in_nhwc(spec)})


def layout_in_nhwc(spec: ConvSpec) -> str:
    """The decision ``layout`` of a convolution on tensor cores whose output is NHWC."""
    layout = Layout.NHWC_STAGED if may_stage(spec, TF32_VARIANT) else Layout.NHWC
    return layout.name.lower()


FAMILY = KernelFamily(
    NAME,
    "cuda",
    spaces,
    code=Code.CALLED,
    arithmetic_of_variants=_ARITHMETIC,
    titles=_TITLES,
    why_not_here=why_not_here,
    reads_volumes=reads_volumes,
    is_dense=True,
)
