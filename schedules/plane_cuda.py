"""Convolutions on the tensor cores of CUDA whose zeros 64 filters share: slices of the input.

What 64 filters use of the input is a list of planes: whole channels, rows of taps of channels, or single taps. Others
are neither read nor multiplied, and what is left is a dense product in which a tap is a distance between two places of
shared memory. So slices over (c) or (c, r), vectors of 64 filters, permuted ones too, and dense weights are all the
same to it, and nothing is compiled for a weight. Float32 is computed in three products of float16, with a bound of its
own (`conv.error_bounds.three_half`).

After Choi and Yang, GPU-architecture-aware fine-grain pruning (2021): what a block stages is what can be skipped.
"""

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.error_bounds import THREE_HALF
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.library.library_space import offered
from tvm_sparse.scheduling.cuda.plane.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.plane.space import PlaneSpace
from tvm_sparse.scheduling.cuda.plane.tiling import FILTERS
from tvm_sparse.scheduling.family import HALF_ARITHMETIC, Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = "plane_cuda"


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The space for `spec`.

    NotApplicable where the filters of a group are no multiple of 64, the GPU is no Hopper, a single pixel has to be
    computed, or the weights of 64 filters and two chunks of their input exceed shared memory.
    """
    gpu = gpu_info(target)
    if reason := why_not_served(spec, gpu):
        raise NotApplicable(reason)
    return list[Space](offered([PlaneSpace(NAME, spec, pattern, gpu)], gpu))


def why_not_served(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why the kernels do not serve a convolution on this GPU, as a sentence, or ""."""
    if not gpu.has_sparse_warpgroups:
        return f"{gpu.name} has not the instructions of compute capability 9.0"
    if spec.k // spec.groups % FILTERS:
        return f"its groups have {spec.k // spec.groups} filters each, and only multiples of {FILTERS} are served"
    return "neighbouring pixels are of different images, far apart in memory" if is_linear(spec) else ""


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
