"""Bottlenecks of residual networks in one kernel, in half precision on the tensor cores of CUDA.

The kernel of a layer computes the two in front of it too (codegen/cuda/bottleneck.cu), so that nothing between them
goes to memory. The layer alone says which these are, and so does a record of a log; the plan takes the kernel where a
model has them (`plan.bottlenecks`).
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import NARROW, WIDE, Bottleneck
from tvm_sparse.scheduling.cuda.bottleneck.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.bottleneck.space import BottleneckSpace
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import gpu_info

NAME = "bottleneck_cuda"


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """The space for what ends with `spec`; NotApplicable where that ends no bottleneck that there is a kernel for."""
    gpu, bottleneck = gpu_info(target), Bottleneck.ending_with(spec)
    if bottleneck.third != spec or not bottleneck.is_served(gpu):
        ends = f"1x1 from {NARROW} to {WIDE} channels, with a residual and ReLU, in half precision on Hopper"
        raise NotApplicable(f"it is for the last of three layers: {ends}")
    return [BottleneckSpace(NAME, bottleneck, gpu)]


FAMILY = KernelFamily(
    NAME,
    "cuda",
    spaces,
    code=Code.SHARED,
    asked_for_only=True,
    computes_before=True,
    takes_any_zeros=True,
    libraries=tuple(LIBRARIES.values()),
)
