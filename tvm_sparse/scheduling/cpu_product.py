"""Dense linear layers on CPUs: a register tile of images by vectors of filters, weights laid out as they are read."""

from functools import partial

import numpy as np
from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d_product import conv2d_product
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, divisors, nearest
from tvm_sparse.target.cpu_info import REGISTERS

# Images of a register tile at most: a vector of weights is read once for all of them.
IMAGES = 6
# Vectors of filters of a register tile at most.
VECTORS = 8
# Tasks of a thread, so that threads end together.
TASKS = 2


class ProductSpace(HandMadeSpace):
    """The space of a convolution that `is_linear`, for vectors of `lanes` floats and so many threads."""

    def __init__(self, name: str, spec: ConvSpec, lanes: int, threads: int = 1):
        # As equal tiles as the images divide into, and three quarters of the registers for their sums.
        self.images = -(-spec.n // -(-spec.n // IMAGES))
        vectors = max(1, min(VECTORS, REGISTERS[lanes] * 3 // 4 // self.images, -(-spec.k // lanes)))
        self.spec, self.filters, self._threads = spec, lanes * vectors, threads
        make_func = partial(conv2d_product, spec, self.filters, self.images)
        super().__init__(name, f"product{self.images}x{self.filters}", make_func, fold=False)

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The weight as (K / filters, C, filters), zeros behind its end."""
        k, c = weight.shape[:2]
        blocks = -(-k // self.filters)
        padded = np.zeros((blocks * self.filters, c), np.float32)
        padded[:k] = weight[:, :, 0, 0]
        return (np.ascontiguousarray(padded.reshape(blocks, self.filters, c).transpose(0, 2, 1)),)

    @property
    def groups(self) -> int:
        """Groups of tiles of images that are tasks of their own, as many as keep all threads busy with these."""
        tiles, blocks = -(-self.spec.n // self.images), -(-self.spec.k // self.filters)
        enough = (each for each in divisors(tiles) if blocks * each >= TASKS * self._threads)
        return next(enough, tiles) if self._threads > 1 else 1

    def apply(self, sch: Schedule, choose: Choose) -> None:
        channels = divisors(self.spec.c, 8)
        conv = sch.get_sblock("conv")
        acc = sch.cache_write(conv, 0, "local")
        n, block, lane, c = sch.get_loops(conv)
        group, tile, image = sch.split(n, [self.groups, None, self.images])
        c, unrolled = sch.split(c, [None, choose.one_of("channels", channels, nearest(channels, 4))])
        sch.reorder(block, group, tile, c, unrolled, image, lane)
        sch.parallel(sch.fuse(block, group))
        sch.vectorize(lane)
        for loop in (unrolled, image):
            sch.unroll(loop)
        sch.reverse_compute_at(acc, tile, preserve_unit_loops=True)
        *_, image, lane = sch.get_loops(acc)
        sch.vectorize(lane)
        sch.unroll(image)
        init = sch.decompose_reduction(conv, c)
        sch.unroll(sch.get_loops(init)[-2])
        n, k, *_ = sch.get_loops(sch.get_sblock("out"))
        sch.parallel(n if self.spec.n > 1 else k)
