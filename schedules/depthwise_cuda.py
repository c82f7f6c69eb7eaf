"""Depthwise convolutions in half precision for CUDA, whose tensors lie in NHWC between layers that cuDNN computes so.

In a network such as MobileNetV2 each lies between two 1x1 layers, which tensor cores compute in NHWC. cuDNN's own
kernels take 3 to 12 times as long as compiled ones for NCHW, which cost a conversion before and behind them. These
write what the next layer reads (`layouts.keep_nhwc`); in NCHW, as a layer alone, they serve to be verified.
"""

from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.dense_half import half_family, why_not_half
from tvm_sparse.scheduling.cuda.depthwise.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.depthwise.space import DepthwiseSpace
from tvm_sparse.scheduling.cuda.depthwise.tiling import COLUMNS, GROUP
from tvm_sparse.target.gpu import GpuInfo

NAME = "depthwise_cuda"


def why_not_served(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if reason := why_not_half(spec, gpu):
        return reason
    if not spec.c == spec.k == spec.groups or spec.c % GROUP or spec.residual:
        return f"it is not depthwise, channels are no multiple of {GROUP}, or a residual is added"
    if spec.r != spec.s or spec.stride[0] != spec.stride[1] or (spec.r, spec.stride[0]) not in COLUMNS:
        return f"no kernel has {spec.r}x{spec.s} taps with a stride of {spec.stride[0]}x{spec.stride[1]}"
    return "its taps are dilated" if set(spec.dilation) != {1} else ""


FAMILY = half_family(NAME, DepthwiseSpace, why_not_served, LIBRARIES, arithmetic=EXACT)
