"""Dense convolutions of images, of at most four channels, in half precision on the tensor cores of CUDA.

cuDNN reads channels in whole groups of 16 bytes, and an image has three, so that most of what it reads and multiplies
is filled up. Here four channels of a tap are a lane's share of a step (codegen/cuda/first.cu). Where the next layer is
cuDNN's in NHWC the kernel writes that itself, and computes the max pool behind it too (`layouts.keep_nhwc`): the
convolution's own output, the largest tensor of many models, then does not exist.
"""

from tvm.target import Target

from tvm_sparse.conv.error_bounds import TENSOR_CORES
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import is_half
from tvm_sparse.scheduling.cuda.first.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.first.space import FirstSpace
from tvm_sparse.scheduling.cuda.first.tiling import CHANNELS, GROUP, FirstTiling
from tvm_sparse.scheduling.cuda.library.library_space import offered
from tvm_sparse.scheduling.family import HALF_ARITHMETIC, HALF_VARIANTS, Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = "first_cuda"


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """The space for `spec`.

    NotApplicable where tensors are float32, it has more than four channels, groups, a residual, filters that are no
    multiple of 8 or other numbers of taps than there are kernels for, or the GPU is older than compute capability 9.0.
    """
    gpu = gpu_info(target)
    if reason := why_not_served(spec, gpu):
        raise NotApplicable(reason)
    return list[Space](offered([FirstSpace(NAME, spec, gpu)], gpu))


def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space without ranking its tiles."""
    gpu = gpu_info(target)
    is_served = variant == HALF_VARIANTS.get(spec.dtype) and not why_not_served(spec, gpu)
    return FirstSpace(NAME, spec, gpu) if is_served else None


def why_not_served(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if not gpu.has_dependent_launch:
        return f"{gpu.name} has no dependent launches, which compute capability 9.0 brought"
    if not is_half(spec.dtype):
        return f"its tensors are {spec.dtype}, and only half precision is served"
    if spec.c > CHANNELS or spec.groups > 1:
        return f"it has {spec.c} channels in {spec.groups} groups, at most {CHANNELS} in one are served"
    if spec.k % GROUP or spec.residual:
        return f"filters are no multiple of {GROUP}, or a residual is added"
    return FirstTiling(spec, 1, 1).obstacle


FAMILY = KernelFamily(
    NAME,
    "cuda",
    spaces,
    named,
    code=Code.SHARED,
    arithmetic=TENSOR_CORES,
    arithmetic_of_variants=HALF_ARITHMETIC,
    takes_any_zeros=True,
    libraries=tuple(LIBRARIES.values()),
)
