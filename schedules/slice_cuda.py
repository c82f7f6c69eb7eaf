"""Filters that share their zeros, for the tensor cores of CUDA: slices, long vectors, and no zeros at all.

What is left of a tile of 16, 32 or 64 filters is a dense product over a list of positions, (c, r, s). Tensor cores
compute it, 8 or 16 positions at a time, each read where it lies in the staged input (codegen/cuda/sparse_tensor.cu). So
slices over (c) or (c, r), vectors of 16 filters and more, permuted ones too, and the few channels of a first layer are
all the same to it. In float32 it computes to float32's accuracy (3xTF32). Nothing is compiled for a weight.

After Choi and Yang, GPU-architecture-aware fine-grain pruning (2021): what a warp executes in lock step, and what a
block stages, is what can be skipped.
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.position_space import PositionSpace, filters_alike
from tvm_sparse.scheduling.cuda.position_tiling import FILTERS, LIBRARIES
from tvm_sparse.scheduling.schedule_names import HALF_VARIANTS, SLICE
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = SLICE
TARGET = "cuda"


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The space for `spec`.

    Raises
    ------
    NotApplicable
        No 16 filters share their zeros, tensors are bfloat16, the GPU is older than compute capability 9.0, or no tile
        of the input and its weights fits shared memory.
    """
    gpu = gpu_info(target)
    if reason := why_not_served(spec, pattern, gpu):
        raise NotApplicable(reason)
    space = PositionSpace(NAME, spec, pattern, gpu)
    if not space.ranked:
        raise NotApplicable(f"no tile of its input and weights fits {gpu.block_shared_bytes} bytes of shared memory")
    return [space]


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space without ranking its tilings, which takes longer than anything done with one of them."""
    gpu = gpu_info(target)
    is_served = variant == HALF_VARIANTS.get(spec.dtype, "") and not why_not_served(spec, pattern, gpu)
    return PositionSpace(NAME, spec, pattern, gpu) if is_served else None


def why_not_served(spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if spec.dtype not in LIBRARIES:
        return f"its tensors are {spec.dtype}, and only {', '.join(LIBRARIES)} are served"
    if not gpu.has_dependent_launch:
        return f"{gpu.name} has no dependent launches, which compute capability 9.0 brought"
    if not filters_alike(spec, pattern.structure):
        per_group, served = spec.k // spec.groups, f"multiples of {FILTERS} filters that share their zeros"
        return f"the zeros of a group's {per_group} filters are {pattern.structure}; it is for {served}"
    return ""
