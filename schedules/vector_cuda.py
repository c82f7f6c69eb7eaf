"""Weights pruned in vectors of filters, and grouped convolutions, for CUDA: a warp takes several filters together.

The kernel is that of `data_cuda`, which is bound by reads of shared memory, one a multiply-add and lane. Here each
position reads its inputs once for 4, 8 or 16 filters (codegen/cuda/data.cu). As there, weights are data and
nothing is compiled for them. The few channels of a group are soon staged, so that there other zeros are served too,
and none: positions that one of the filters uses are multiplied with all.
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.data.kernels import VECTORS
from tvm_sparse.scheduling.cuda.data.space import DataSpace, why_not_served
from tvm_sparse.scheduling.cuda.data.tiling import MAX_LANE_PIXELS
from tvm_sparse.scheduling.cuda.library.library_space import offered
from tvm_sparse.scheduling.cuda.library.map_size import is_grouped
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import gpu_info

NAME = "vector_cuda"
# Filters that a warp may take at a time.
SHARED = tuple(each for each in MAX_LANE_PIXELS if each > 1)


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The spaces for `spec`, most promising first.

    NotApplicable where filters do not share their zeros in vectors and are in no groups of several channels, the GPU
    has no clusters, or no tile of the input and its weights fits shared memory.
    """
    gpu, vector = gpu_info(target), _vector(spec, pattern)
    if reason := why_not_served(gpu):
        raise NotApplicable(reason)
    found = [DataSpace(NAME, spec, pattern, gpu, each) for each in SHARED if vector % each == 0]
    if not found:
        served = f"filters that share their zeros in vectors of {SHARED[0]} or more"
        raise NotApplicable(f"the zeros are {pattern.structure}; it is for {served}")
    return list[Space](offered(found, gpu))


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space without ranking its tilings, which takes longer than anything done with one of them."""
    gpu, shared = gpu_info(target), {f"filters{each}": each for each in SHARED}.get(variant, 0)
    is_served = shared and not why_not_served(gpu) and _vector(spec, pattern) % shared == 0
    return DataSpace(NAME, spec, pattern, gpu, shared) if is_served else None


def _vector(spec: ConvSpec, pattern: SparsityPattern) -> int:
    """Filters side by side that may be taken together."""
    return spec.k // spec.groups if is_grouped(spec) else pattern.vector


FAMILY = KernelFamily(
    NAME, "cuda", spaces, named, code=Code.SHARED, is_predicted=True, libraries=tuple(VECTORS.values())
)
