"""Linear layers on many images on the tensor cores of CUDA: weights are read sparse and multiplied dense.

To multiply by zeros costs tensor cores less than to read them from memory costs the others. So what is read are lists
of non-zeros, which are written to tiles in shared memory, which tensor cores multiply (codegen/cuda/linear_tensor.cu).
The variant `dense` is for layers with few zeros. Nothing is compiled for a weight.

Numbers are multiplied in two parts, TF32 and what that cuts off in bfloat16: float32's accuracy within a bound of its
own (`conv.error_bounds.corrected_tf32`). All inputs of an image reach all of its outputs, also through
zeros, as in a dense layer: where one is infinite or NaN, the outputs are NaN.

After Xia et al., Flash-LLM (2023), who load sparse and compute dense in half precision.
"""

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.error_bounds import CORRECTED_TF32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.library_space import offered
from tvm_sparse.scheduling.cuda.linear_tensor.kernels import LIBRARY
from tvm_sparse.scheduling.cuda.linear_tensor.space import DENSE, LinearTensorSpace
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = "linear_tensor_cuda"
# Tensor cores take 64 images at a time: of fewer than these most were none. A dense weight takes as long to read for
# a few as for 64, and TVM's product of eight images with 4096x1000 took 72 us on an H200, that of 64 here 17.
LEAST_IMAGES, LEAST_IMAGES_DENSE = 16, 5


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The spaces of `spec`, most promising first.

    NotApplicable where it is no linear layer or has few images, tensors are not float32, or the GPU is no Hopper.
    """
    gpu = gpu_info(target)
    if reason := why_not_served(spec, gpu):
        raise NotApplicable(reason)
    return list[Space](offered([LinearTensorSpace(NAME, spec, pattern, gpu, each) for each in (False, True)], gpu))


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space called `variant`, the dense one also of few images; None where it cannot be made."""
    gpu = gpu_info(target)
    least_images = LEAST_IMAGES_DENSE if variant == DENSE else LEAST_IMAGES
    if variant not in ("", DENSE) or why_not_served(spec, gpu, least_images):
        return None
    return LinearTensorSpace(NAME, spec, pattern, gpu, variant == DENSE)


def why_not_served(spec: ConvSpec, gpu: GpuInfo, least_images: int = LEAST_IMAGES) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if not gpu.has_sparse_warpgroups:
        return f"{gpu.name} has not the instructions of compute capability 9.0"
    if spec.dtype != FLOAT32:
        return f"its tensors are {spec.dtype}, and only {FLOAT32} is split"
    if not is_linear(spec):
        return "it is for linear layers, of one group"
    if spec.n < least_images:
        return f"{spec.n} images, at least {least_images} are served"
    return ""


FAMILY = KernelFamily(
    NAME, "cuda", spaces, named, code=Code.SHARED, arithmetic=CORRECTED_TF32, is_predicted=True, libraries=(LIBRARY,)
)
