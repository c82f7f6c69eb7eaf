"""Depthwise convolutions in half precision for CUDA, whose tensors lie in NHWC between layers that cuDNN computes so.

In a network such as MobileNetV2 each lies between two 1x1 layers, which tensor cores compute in NHWC. cuDNN's own
kernels take 3 to 12 times as long as compiled ones for NCHW, which cost a conversion before and behind them. These
write what the next layer reads (`layouts.keep_nhwc`); in NCHW, as a layer alone, they serve to be verified.
"""

from tvm.target import Target

from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import is_half
from tvm_sparse.scheduling.cuda.depthwise.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.depthwise.space import DepthwiseSpace
from tvm_sparse.scheduling.cuda.depthwise.tiling import COLUMNS, GROUP
from tvm_sparse.scheduling.cuda.library.library_space import offered
from tvm_sparse.scheduling.family import HALF_VARIANTS, Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = "depthwise_cuda"


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """The space for `spec`; NotApplicable where `why_not_served` says so."""
    gpu = gpu_info(target)
    if reason := why_not_served(spec, gpu):
        raise NotApplicable(reason)
    return list[Space](offered([DepthwiseSpace(NAME, spec, gpu)], gpu))


def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space without ranking its tilings."""
    gpu = gpu_info(target)
    is_served = variant == HALF_VARIANTS.get(spec.dtype) and not why_not_served(spec, gpu)
    return DepthwiseSpace(NAME, spec, gpu) if is_served else None


def why_not_served(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if not gpu.has_dependent_launch:
        return f"{gpu.name} has no dependent launches, which compute capability 9.0 brought"
    if not is_half(spec.dtype):
        return f"its tensors are {spec.dtype}, and only half precision is served"
    if not spec.c == spec.k == spec.groups or spec.c % GROUP or spec.residual:
        return f"it is not depthwise, channels are no multiple of {GROUP}, or a residual is added"
    if spec.r != spec.s or spec.stride[0] != spec.stride[1] or (spec.r, spec.stride[0]) not in COLUMNS:
        return f"no kernel has {spec.r}x{spec.s} taps with a stride of {spec.stride[0]}x{spec.stride[1]}"
    return "its taps are dilated" if set(spec.dilation) != {1} else ""


FAMILY = KernelFamily(
    NAME,
    "cuda",
    spaces,
    named,
    code=Code.SHARED,
    arithmetic=EXACT,
    takes_any_zeros=True,
    libraries=tuple(LIBRARIES.values()),
)
