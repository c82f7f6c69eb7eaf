"""Dense convolutions of images, of at most four channels, in half precision on the tensor cores of CUDA.

cuDNN reads channels in whole groups of 16 bytes, and an image has three, so that most of what it reads and multiplies
is filled up. Here four channels of a tap are a lane's share of a step (codegen/cuda/first.cu). Where the next layer is
cuDNN's in NHWC the kernel writes that itself, and computes the max pool behind it too (`layouts.keep_nhwc`): the
convolution's own output, the largest tensor of many models, then does not exist.
"""

from tvm_sparse.conv.error_bounds import TENSOR_CORES
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.dense_half import half_family, why_not_half
from tvm_sparse.scheduling.cuda.first.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.first.space import FirstSpace
from tvm_sparse.scheduling.cuda.first.tiling import CHANNELS, GROUP, FirstTiling
from tvm_sparse.scheduling.family import HALF_ARITHMETIC
from tvm_sparse.target.gpu import GpuInfo

NAME = "first_cuda"


def why_not_served(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if reason := why_not_half(spec, gpu):
        return reason
    if spec.c > CHANNELS or spec.groups > 1:
        return f"it has {spec.c} channels in {spec.groups} groups, at most {CHANNELS} in one are served"
    if spec.k % GROUP or spec.residual:
        return f"filters are no multiple of {GROUP}, or a residual is added"
    return FirstTiling(spec, 1, 1).obstacle


FAMILY = half_family(
    NAME, FirstSpace, why_not_served, LIBRARIES, arithmetic=TENSOR_CORES, arithmetic_of_variants=HALF_ARITHMETIC
)
