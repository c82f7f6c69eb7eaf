"""Unstructured convolutions on the sparse tensor cores of CUDA, which skip two of every four positions of filters.

A sparse tensor core takes two of every four columns, each row its own. So positions, (c, r, s), are put in fours of
which no filter of a tile uses more than two: where one weight in five is not zero all of them find three others, of 128
filters where it is one in four. Nothing of a weight's structure is asked, nothing is compiled for it, and its zeros
need not be in twos of four (Mishra et al., Accelerating Sparse Deep Neural Networks, 2021, prune for that; here the
order of positions is what gives way).

In float32 numbers are sums of two float16 numbers, multiplied in three products (3xFP16; Ootomo & Yokota, Recovering
single precision accuracy from Tensor Cores, 2022): float32's accuracy within a bound of its own
(`conv.error_bounds.three_half`). In half precision one product does.
"""

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.error_bounds import THREE_HALF
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.library_space import offered
from tvm_sparse.scheduling.cuda.quad.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.quad.space import QuadSpace
from tvm_sparse.scheduling.cuda.quad.tiling import MAX_ELEMENTS, MAX_PIXELS, MAX_TAPS
from tvm_sparse.scheduling.family import HALF_ARITHMETIC, Code, KernelFamily
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
    images = min(spec.n, 2 + MAX_PIXELS // (spec.out_h * spec.out_w))
    elements = images * spec.c * spec.h * spec.w
    return f"a tile's images have {elements} elements, at most {MAX_ELEMENTS}" if elements > MAX_ELEMENTS else ""


FAMILY = KernelFamily(
    NAME,
    "cuda",
    spaces,
    code=Code.SHARED,
    arithmetic=THREE_HALF,
    arithmetic_of_variants=HALF_ARITHMETIC,
    is_predicted=True,
    takes_any_zeros=True,
    libraries=tuple(LIBRARIES.values()),
)
