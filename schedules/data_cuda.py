"""Weights as data for CUDA, at full strength: one kernel for all shapes and weights, nothing compiled for either.

Where code is executed too seldom, reading a folded weight costs more than using it: at batch 1 a layer's code is
fetched from level 2 for one use of each instruction. Here a non-zero is 8 bytes, copied to shared memory before the
kernel ahead has ended, and a few kilobytes of code serve a whole network. What bounds such a kernel are reads of shared
memory, one a multiply-add and lane (codegen/cuda/data.cu says how they are laid out); Escort's `csr_cuda` reads
weights and input from global memory instead.

A block asks for all shared memory that it may have, so that each multiprocessor has one. Otherwise blocks that start
early, while the kernel ahead ends, go two by two where there is room: the 52 convolutions of ResNet-50 then took 416 us
in a row instead of 350.
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.data.kernels import SINGLE
from tvm_sparse.scheduling.cuda.data.space import DataSpace, why_not_served
from tvm_sparse.scheduling.cuda.library.library_space import offered
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import gpu_info

NAME = "data_cuda"


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The space for `spec`.

    NotApplicable where the GPU has no clusters, or no tile of the input and its weights fits shared memory.
    """
    gpu = gpu_info(target)
    if reason := why_not_served(gpu):
        raise NotApplicable(reason)
    return list[Space](offered([DataSpace(NAME, spec, pattern, gpu)], gpu))


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space without ranking its tilings, which takes longer than anything done with one of them."""
    gpu = gpu_info(target)
    return DataSpace(NAME, spec, pattern, gpu) if not (variant or why_not_served(gpu)) else None


FAMILY = KernelFamily(
    NAME, "cuda", spaces, named, code=Code.SHARED, is_predicted=True, libraries=tuple(SINGLE.values())
)
