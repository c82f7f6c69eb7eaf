"""Dense linear layers on CPUs: a register tile of images by vectors of filters, weights laid out as they are read."""

import math
from functools import partial

import numpy as np
from tvm.s_tir import Schedule

from tvm_sparse.conv.conv2d_product import conv2d_product
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.nchwc import in_registers
from tvm_sparse.scheduling.cpu.register_tile import linear_tile
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, divisors, nearest
from tvm_sparse.target.cpu_info import REGISTERS

# Tasks of a thread, so that threads end together.
TASKS = 2


class ProductSpace(HandMadeSpace):
    """The space of a convolution that `is_linear`, for vectors of `lanes` floats and so many threads."""

    def __init__(self, name: str, spec: ConvSpec, lanes: int, threads: int = 1):
        self.spec, self._lanes, self._threads = spec, lanes, threads
        self.images, self._vectors = linear_tile(spec.n, spec.k, lanes, REGISTERS[lanes])
        self.filters = lanes * self._vectors
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
        conv, out = sch.get_sblock("conv"), sch.get_sblock("out")
        sch.set_scope(conv, 0, "local")
        n, block, lane, c = sch.get_loops(conv)
        group, tile, image = sch.split(n, [self.groups, None, self.images])
        c, unrolled = sch.split(c, [None, choose.one_of("channels", channels, nearest(channels, 4))])
        vector, lane = sch.split(lane, [self._vectors, self._lanes])
        sch.reorder(block, group, tile, c, unrolled, image, vector, lane)
        sch.parallel(sch.fuse(block, group))
        in_registers(sch, unrolled, image, vector, lane)
        # As sums leave the registers they are stored, with what is added to them.
        sch.reverse_compute_at(out, tile, preserve_unit_loops=True)
        init = sch.decompose_reduction(conv, c)
        in_registers(sch, *sch.get_loops(init)[-3:])
        *_, image, k, y, x = sch.get_loops(out)
        vector, lane = sch.split(k, [None, math.gcd(self._lanes, self.spec.k)])
        sch.reorder(y, x, image, vector, lane)
        in_registers(sch, image, vector, lane)
