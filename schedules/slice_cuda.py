"""Convolutions on the tensor cores of CUDA, without the zeros that 16 filters or more share.

What is left of a tile of 16, 32 or 64 filters is a dense product over a list of positions, (c, r, s). Tensor cores
compute it, 8 or 16 positions at a time, each read where it lies in the staged input (codegen/cuda/slice.cu). So
slices over (c) or (c, r), vectors of 16 filters and more, permuted ones too, and dense weights are all the same to it;
where filters share no zeros, it multiplies by those of each other. In float32 it computes to float32's accuracy: in
TF32, and what that misses in bfloat16; where TF32 is allowed, without that. Nothing is compiled for a weight.

After Choi and Yang, GPU-architecture-aware fine-grain pruning (2021): what a warp executes in lock step, and what a
block stages, is what can be skipped.
"""

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.error_bounds import CORRECTED_TF32, TF32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.library_space import offered, why_too_old
from tvm_sparse.scheduling.cuda.slice.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.slice.space import SliceSpace
from tvm_sparse.scheduling.cuda.slice.tiling import FILTERS
from tvm_sparse.scheduling.family import HALF_ARITHMETIC, HALF_VARIANTS, TF32_VARIANT, Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = "slice_cuda"


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The space for `spec`.

    NotApplicable where the filters of a group are no multiple of 16, the GPU is older than compute capability 9.0, a
    single pixel has to be computed, or no tile of the input and its weights fits shared memory.
    """
    gpu = gpu_info(target)
    if reason := why_not_served(spec, gpu):
        raise NotApplicable(reason)
    return list[Space](offered([SliceSpace(NAME, spec, pattern, gpu)], gpu))


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space without ranking its tilings, which takes longer than anything done with one of them.

    That of float32 which may be rounded to TF32 no search is offered.
    """
    gpu, tf32 = gpu_info(target), variant == TF32_VARIANT and spec.dtype == FLOAT32
    is_served = (tf32 or variant == HALF_VARIANTS.get(spec.dtype, "")) and not why_not_served(spec, gpu)
    return SliceSpace(NAME, spec, pattern, gpu, tf32) if is_served else None


def why_not_served(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if reason := why_too_old(gpu):
        return reason
    if spec.k // spec.groups % FILTERS:
        return f"its groups have {spec.k // spec.groups} filters each, and only multiples of {FILTERS} are served"
    if is_linear(spec):
        return "of a single pixel tensor cores compute eight"
    return ""


FAMILY = KernelFamily(
    NAME,
    "cuda",
    spaces,
    named,
    code=Code.SHARED,
    arithmetic=CORRECTED_TF32,
    arithmetic_of_variants={**HALF_ARITHMETIC, TF32_VARIANT: TF32},
    is_predicted=True,
    takes_any_zeros=True,
    libraries=tuple(LIBRARIES.values()),
)
