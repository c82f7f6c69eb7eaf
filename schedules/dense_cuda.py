"""Dense convolution for CUDA: the structure of `spatial_tiles` with the weight as an argument, staged like the input.

What a layer falls to that is not sparse enough, and the baseline to beat where there is no cuDNN.
"""

from collections.abc import Iterable
from functools import partial

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import WEIGHT, widened
from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import TileSpace
from tvm_sparse.scheduling.cuda.folded.tile_plan import Structure, layouts, plan
from tvm_sparse.scheduling.cuda.lane_sums import WARP, WIDE, bind_sums, images_of, write_sums
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, Space
from tvm_sparse.scheduling.tir_writing import new_buffer, whole, written_function
from tvm_sparse.target.gpu import GpuInfo, gpu_info

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
                first = next((each for each in plans if each is not None), None)
                found += [] if first is None else [TileSpace(NAME, first, fold=False)]
    return found


class LaneProductSpace(HandMadeSpace):
    """The space of a convolution that `conv2d_product.is_linear`: warps of `lane_sums`, with the weight as it is."""

    def __init__(self, name: str, spec: ConvSpec, gpu: GpuInfo):
        self.spec, self.images, self.gpu = spec, images_of(spec), gpu
        make_func = partial(written_function, spec, {WEIGHT: (spec.weight_shape, FLOAT32)}, self._write)
        super().__init__(name, "lanes", make_func, fold=False)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        bind_sums(sch, choose, self.images, self.gpu)

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        spec, x, weight = self.spec, arguments["x"], arguments[WEIGHT]
        # Rows of other lengths do not begin at whole reads.
        wide = WIDE if spec.c % WIDE == 0 else 1

        def reads(_group: tirx.Expr, k: tirx.Var) -> Iterable:
            return whole(x), whole(weight, k)

        def products(group: tirx.Expr, k: tirx.Var, lane: tirx.Var, sums: tirx.Var) -> None:
            factor, value = (new_buffer(name, (wide,), "local") for name in ("factor", "value"))
            with T.serial(0, -(-spec.c // (WARP * wide))) as step:
                read, last = step * WARP + lane, spec.c // wide - 1
                # No branch, as in `linear_cuda`: what lies behind the end is read again, and not added.
                first = tirx.min(read, last) * wide
                with T.vectorized(wide) as i:
                    T.buffer_store(factor, weight[k, first + i, 0, 0], [i])
                for image in range(self.images):
                    n = tirx.min(group * self.images + image, spec.n - 1)
                    with T.vectorized(wide) as i:
                        T.buffer_store(value, widened(x[n, first + i, 0, 0]), [i])
                    for i in range(wide):
                        more = sums[image] + factor[i] * value[i]
                        T.buffer_store(sums, tirx.Select(read <= last, more, sums[image]), [image])

        write_sums(spec, self.images, arguments, reads, products)


FAMILY = KernelFamily(NAME, "cuda", spaces, is_dense=True)
