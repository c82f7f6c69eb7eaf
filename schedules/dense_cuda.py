"""Dense convolution for CUDA: the structure of `spatial_tiles` with the weight as an argument, staged like the input.

What a layer falls to that is not sparse enough, and the baseline to beat where there is no cuDNN.
"""

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import TileSpace
from tvm_sparse.scheduling.cuda.folded.tile_plan import Structure, layouts, plan
from tvm_sparse.scheduling.cuda.lane_product import LaneProductSpace
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.gpu import gpu_info

NAME = "dense_cuda"
# Multiply-adds of a k-tile, between two barriers.
K_TILE = 512


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some."""
    gpu = gpu_info(target)
    if is_linear(spec):
        return [LaneProductSpace(NAME, spec, gpu)]
    found: list[Space] = []
    for mode in ("async", "single", "direct"):
        for pixels in (4, 2, 1):
            # A thread that keeps several rows reads each weight once for all of them.
            if pixels <= spec.out_h and (mode != "direct" or not found):
                structures = (Structure(tiles, pixels, mode, mode != "direct") for tiles in layouts(spec, gpu, pixels))
                plans = (plan(structure, gpu, K_TILE) for structure in structures)
                found += [TileSpace(NAME, each, fold=False) for each in plans if each is not None][:1]
    return found


FAMILY = KernelFamily(NAME, "cuda", spaces, is_dense=True)
