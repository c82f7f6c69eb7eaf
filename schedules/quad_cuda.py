"""Unstructured convolutions on the sparse tensor cores of CUDA, which skip two of every four positions of filters.

A sparse tensor core takes two of every four columns, each row its own. So positions, (c, r, s), are put in fours of
which no filter of a tile uses more than two: where one weight in five is not zero all of them find three others, of 128
filters where it is one in four. Nothing of a weight's structure is asked, nothing is compiled for it, and its zeros
need not be in twos of four (Mishra et al., Accelerating Sparse Deep Neural Networks, 2021, prune for that; here the
order of positions is what gives way).

In float32 numbers are sums of two float16 numbers, multiplied in three products (3xFP16; Ootomo & Yokota, Recovering
single precision accuracy from Tensor Cores, 2022): float32's accuracy within a bound of its own
(`conv.error_bounds.three_half`). In half precision one product does, and of float32 where that may be rounded to TF32.
"""

import math
from dataclasses import replace
from typing import Any

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.error_bounds import ONE_HALF, THREE_HALF
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.library_space import offered
from tvm_sparse.scheduling.cuda.quad.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.quad.space import QuadSpace
from tvm_sparse.scheduling.cuda.quad.tiling import MAX_ELEMENTS, MAX_PIXELS, MAX_TAPS
from tvm_sparse.scheduling.family import HALF_ARITHMETIC, TF32_VARIANT, Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = "quad_cuda"
# A tile has 128 filters or more: of fewer tensor cores compute too many that are none.
LEAST_FILTERS = 96


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The space for `spec`.

    NotApplicable where a group has fewer than 96 filters, the GPU is no Hopper, a single pixel has to be computed, or
    filters have more than 32 taps or too many positions.
    """
    gpu = gpu_info(target)
    if reason := why_not_served(spec, gpu):
        raise NotApplicable(reason)
    return list[Space](offered([QuadSpace(NAME, spec, pattern, gpu)], gpu))


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space whose kernels round float32 as TF32 does, which no search is offered; None for another `variant`."""
    gpu = gpu_info(target)
    if variant != TF32_VARIANT or spec.dtype != FLOAT32 or why_not_served(spec, gpu):
        return None
    space = QuadSpace(NAME, spec, pattern, gpu, tf32=True)
    return space if space.ranked else None


def why_not_served(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if not gpu.has_sparse_warpgroups:
        return f"{gpu.name} has not the instructions of compute capability 9.0"
    if spec.k // spec.groups < LEAST_FILTERS:
        return f"its groups have {spec.k // spec.groups} filters each, at least {LEAST_FILTERS} are served"
    if is_linear(spec):
        return "neighbouring pixels are of different images, far apart in memory"
    if spec.r * spec.s > MAX_TAPS:
        return f"filters have {spec.r * spec.s} taps, at most {MAX_TAPS}"
    elements = _elements(spec)
    return f"a tile's images have {elements} elements, at most {MAX_ELEMENTS}" if elements > MAX_ELEMENTS else ""


def _elements(spec: ConvSpec) -> int:
    """Input elements of a tile's images, at most."""
    images = min(spec.n, 2 + MAX_PIXELS // (spec.out_h * spec.out_w))
    if spec.volumes is not None:
        images = min(spec.input_shape[0], (2 + images // spec.volumes.outputs) * spec.volumes.within.size)
    return images * math.prod(spec.input_shape[1:])


def reads_volumes(spec: ConvSpec, _decisions: Any) -> ConvSpec:
    """`spec`, where there is a bit for each tap, else the same without volumes."""
    taps = spec.volumes.taps if spec.volumes is not None else 1
    has_bits = taps * spec.r * spec.s <= MAX_TAPS and _elements(spec) <= MAX_ELEMENTS
    return spec if has_bits else replace(spec, volumes=None)


FAMILY = KernelFamily(
    NAME,
    "cuda",
    spaces,
    named,
    code=Code.SHARED,
    arithmetic=THREE_HALF,
    arithmetic_of_variants={**HALF_ARITHMETIC, TF32_VARIANT: ONE_HALF},
    is_predicted=True,
    takes_any_zeros=True,
    reads_volumes=reads_volumes,
    libraries=tuple(LIBRARIES.values()),
)
