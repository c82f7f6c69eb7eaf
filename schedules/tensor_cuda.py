"""Dense on tensor cores to float32's accuracy (3xTF32): a kernel that splits the input, and cuDNN in TF32.

Where few pixels execute a folded kernel's code, as in the deep layers of a network, tensor cores multiply by zeros
sooner than anything skips them, three times over (`conv.tf32_parts`). The parts of the input are written channels last,
as tensor cores read them, behind one another: cuDNN sees one convolution of three times as many channels.
"""

import math

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import MAX_ELEMENTS, ConvSpec
from tvm_sparse.conv.tf32_parts import GROUP, high_and_low, is_strided_product, parts_of_weight, spec_of_parts
from tvm_sparse.cudnn.packed_function import CONVOLUTION
from tvm_sparse.cudnn.plan import PRECOMP, Plan
from tvm_sparse.schedules import dense_cudnn
from tvm_sparse.scheduling.csr import Shape, new_buffer, whole, written_function
from tvm_sparse.scheduling.cuda import cost_model
from tvm_sparse.scheduling.schedule_names import TENSOR
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = TENSOR
TARGET = "cuda"
# A tile that is transposed in shared memory: channels, pixels, and rows of 32 threads.
CHANNELS, PIXELS, ROWS = 32, (32, 64), 8
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
    if spec.groups > 1 or spec.k % GROUP:
        return f"{spec.groups} groups, {spec.k} filters: tensor cores take one group, of a multiple of {GROUP} filters"
    if is_linear(spec):
        return "cuDNN computes a single pixel many times slower than it reads the weights"
    elements = math.prod(_parts_shape(spec))
    return f"its parts are {elements} elements, at most {MAX_ELEMENTS}" if elements > MAX_ELEMENTS else ""


def _parts_shape(spec: ConvSpec) -> tuple[int, int, int, int]:
    """(N, H, W, C) of what cuDNN reads. Not by the spec of the parts, which may be too large to be one."""
    pixels = spec.out_h * spec.out_w if is_strided_product(spec) else math.prod(spec.padded_shape[2:])
    return spec.n, 1, pixels, 3 * spec.c + GROUP


class TensorSpace(HandMadeSpace):
    """The only space of `tensor_cuda`."""

    def __init__(self, spec: ConvSpec, gpu: GpuInfo):
        self.spec, self.gpu = spec, gpu
        self.plan = Plan(spec_of_parts(spec), "nhwc", PRECOMP, "fused", tf32=True, reads_nhwc=True)
        parts = self.plan.spec
        self.has_zero_bias = "bias" in self.plan.arguments and not spec.bias
        weight: dict[str, tuple[Shape, str]] = {"weight": ((spec.k, spec.r, spec.s, parts.c), FLOAT32)}
        if self.has_zero_bias:
            weight["zero_bias"] = ((spec.k,), FLOAT32)
        super().__init__(NAME, "", written_function(spec, weight, self._write), fold=False)

    @property
    def estimate_us(self) -> float:
        """Estimated time: the input is read and its parts written, then read and multiplied."""
        moved_bytes = 4 * (math.prod(self.spec.input_shape) + math.prod(self.plan.spec.input_shape))
        split_us = moved_bytes / (SPLIT_SHARE * self.gpu.dram_bytes_s) * 1e6
        return split_us + cost_model.cudnn_us(self.plan.spec, self.gpu)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        found = (np.ascontiguousarray(parts_of_weight(weight)),)
        return (*found, np.zeros(self.spec.k, np.float32)) if self.has_zero_bias else found

    def apply(self, sch: Schedule, choose: Choose) -> None:
        pixels = self.decide(sch, choose, "pixels", PIXELS, PIXELS[0])
        split, stage = sch.get_sblock("split"), sch.get_sblock("stage")
        pixel, channel = sch.get_loops(split)
        tile, place = sch.split(pixel, [None, pixels])
        group, lane = sch.split(channel, [None, CHANNELS])
        repeat, row = sch.split(place, [None, ROWS])
        sch.reorder(tile, group, repeat, row, lane)
        threads = {"blockIdx.x": tile, "blockIdx.y": group, "threadIdx.y": row, "threadIdx.x": lane}
        for thread, loop in threads.items():
            sch.bind(loop, thread)
        sch.compute_at(stage, group, preserve_unit_loops=True)
        channel, place = sch.get_loops(stage)[-2:]
        _, row = sch.split(channel, [None, ROWS])
        _, lane = sch.split(place, [None, CHANNELS])
        sch.bind(row, "threadIdx.y")
        sch.bind(lane, "threadIdx.x")
        # Lanes write pixels and read channels: a row that is one longer keeps both apart in shared memory's banks.
        sch.storage_align(stage, 0, axis=0, factor=CHANNELS, offset=1)

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        parts = new_buffer("parts", (self.plan.spec.n, self.plan.spec.h, self.plan.spec.w, self.plan.spec.c))
        self._write_parts(arguments["x"], parts)
        scratch = new_buffer("scratch", (tirx.IntImm("int64", self.plan.scratch["end"] // 4),))
        bias = arguments.get("bias", arguments.get("zero_bias"))
        arrays = {**arguments, "x": parts, "bias": bias, "scratch": scratch}
        with T.sblock("conv"):
            T.reads(*(whole(arrays[name]) for name in self.plan.inputs))
            T.writes(whole(arguments["y"]))
            T.evaluate(T.call_packed(CONVOLUTION, *(arrays[name] for name in self.plan.arguments), self.plan.to_text()))

    def _write_parts(self, x: tirx.Var, parts: tirx.Var) -> None:
        """Two blocks, between which a tile lies in shared memory: lanes read pixels and write channels."""
        spec, own = self.spec, self.plan.spec
        count = spec.n * own.h * own.w
        pixels, channels = (-(-extent // tile) * tile for extent, tile in ((count, max(PIXELS)), (spec.c, CHANNELS)))
        staged = new_buffer("staged", (channels, pixels), "shared")
        with T.grid(channels, pixels) as loops, T.sblock("stage"):
            c, pixel = T.axis.remap("SS", loops)
            T.reads(whole(x))
            T.writes(staged[c, pixel])
            T.buffer_store(staged, self._read(x, c, pixel), [c, pixel])
        filled = own.c - 3 * spec.c
        with T.grid(pixels, channels) as loops, T.sblock("split"):
            pixel, c = T.axis.remap("SS", loops)
            T.reads(staged[c, pixel])
            T.writes(whole(parts))
            high, low = high_and_low(staged[c, pixel])
            at = self._place(pixel)
            with T.If(tirx.all(pixel < count, c < spec.c)), T.Then():
                for part, value in enumerate((high, low, high)):
                    T.buffer_store(parts, value, [*at, part * spec.c + c])
            if filled:
                with T.If(tirx.all(pixel < count, c < filled)), T.Then():
                    T.buffer_store(parts, tirx.const(0.0, FLOAT32), [*at, 3 * spec.c + c])

    def _read(self, x: tirx.Var, c: tirx.Expr, pixel: tirx.Expr) -> tirx.Expr:
        """The input's element that is split for channel `c` of a pixel, zero outside."""
        spec, own = self.spec, self.plan.spec
        strides = spec.stride if is_strided_product(spec) else (1, 1)
        top, left = spec.padding[:2] if own.padding != spec.padding else (0, 0)
        n, row, column = self._place(pixel)
        h, w = row * strides[0] - top, column * strides[1] - left
        inside = [n < spec.n, c < spec.c, h >= 0, h < spec.h, w >= 0, w < spec.w]
        return tirx.if_then_else(tirx.all(*inside), x[n, c, h, w], tirx.const(0.0, FLOAT32))

    def _place(self, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
        """Image, row and column of a pixel of what cuDNN reads."""
        h, w = self.plan.spec.h, self.plan.spec.w
        return tirx.floordiv(pixel, h * w), tirx.floormod(tirx.floordiv(pixel, w), h), tirx.floormod(pixel, w)
