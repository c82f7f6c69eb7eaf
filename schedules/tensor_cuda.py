"""Dense on tensor cores to float32's accuracy (3xTF32): a kernel that splits the input, and cuDNN in TF32.

Where few pixels execute a folded kernel's code, as in the deep layers of a network, tensor cores multiply by zeros
sooner than anything skips them, three times over (`conv.tf32_parts`). The parts of the input are written channels last,
as tensor cores read them, behind one another: cuDNN sees one convolution of three times as many channels.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv.conv2d import conv2d
from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.error_bounds import THREE_TF32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import MAX_ELEMENTS, ConvSpec
from tvm_sparse.conv.staged_input import StagedInput, channel_group
from tvm_sparse.conv.tf32_parts import PRODUCTS
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.schedules import dense_cudnn
from tvm_sparse.scheduling.cuda.folded import cost_model
from tvm_sparse.scheduling.cuda.staging import PIXELS, is_transposed
from tvm_sparse.scheduling.cudnn_calls import convolution_call
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Choose, NotApplicable, Space, WrittenSpace
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = "tensor_cuda"
# The share of the memory's rate at which the input is split (assumed).
SPLIT_SHARE = 0.6

why_not_here = dense_cudnn.why_not_here


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """The only space of `spec`.

    Raises
    ------
    NotApplicable
        cuDNN is not on this machine, the GPU has no TF32, or tensor cores do not serve the convolution.
    """
    gpu = gpu_info(target)
    if reason := why_not_here() or why_not_served(spec, gpu):
        raise NotApplicable(reason)
    return [TensorSpace(spec, gpu)]


def why_not_served(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why tensor cores do not serve a convolution on this GPU, as a sentence, or ""."""
    if gpu.compute_capability < 80:
        return f"{gpu.name} has no TF32, which compute capability 8.0 brought"
    if spec.dtype != FLOAT32:
        return f"its tensors are {spec.dtype}, and only {FLOAT32} is split"
    if spec.groups > 1 or spec.k % channel_group(spec):
        group = channel_group(spec)
        return f"{spec.groups} groups, {spec.k} filters: tensor cores take one group, of a multiple of {group} filters"
    if is_linear(spec):
        return "cuDNN computes a single pixel many times slower than it reads the weights"
    elements = math.prod(StagedInput(spec, PRODUCTS).shape)
    return f"its parts are {elements} elements, at most {MAX_ELEMENTS}" if elements > MAX_ELEMENTS else ""


class TensorSpace(WrittenSpace):
    """The only space of `tensor_cuda`; its decision is how many pixels a thread block transposes at once."""

    def __init__(self, spec: ConvSpec, gpu: GpuInfo):
        super().__init__(NAME, "", partial(conv2d, spec), fold=False)
        self.spec, self.gpu, self.staged = spec, gpu, StagedInput(spec, PRODUCTS)

    @property
    def estimate_us(self) -> float:
        """Estimated time: the input is read and its parts written, then read and multiplied."""
        moved_bytes = 4 * (math.prod(self.spec.input_shape) + math.prod(self.staged.shape))
        split_us = moved_bytes / (SPLIT_SHARE * self.gpu.dram_bytes_s) * 1e6
        return split_us + cost_model.cudnn_us(self.staged.read, self.gpu)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        self.decide(sch, choose, "pixels", PIXELS if is_transposed(self.staged) else PIXELS[:1], PIXELS[0])

    def packed(self, weight: np.ndarray, decisions: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        plan = self._plan(decisions)
        found = (np.ascontiguousarray(self.staged.weight(weight)),)
        no_bias = "bias" in plan.arguments and not self.spec.bias
        return (*found, np.zeros(self.spec.k, FLOAT32)) if no_bias else found

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        return convolution_call(self._plan(decisions))

    def _plan(self, decisions: Mapping[str, Any]) -> Plan:
        staged = StagedInput(self.spec, PRODUCTS, pixels=decisions["pixels"])
        return dense_cudnn.staged_plan(staged, tf32=True)


FAMILY = KernelFamily(
    NAME, "cuda", spaces, arithmetic=THREE_TF32, why_not_here=why_not_here, is_predicted=True, calls_cudnn=True
)
