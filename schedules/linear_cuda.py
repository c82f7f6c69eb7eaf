"""Linear layers and other convolutions to one pixel on CUDA: a sparse matrix, weights as data, times the input's rows.

`csr_cuda` gives neighbouring pixels to neighbouring threads, and here a map has one. On few images the threads of a
warp share a filter (`lane_sums`): reading weights is the bound. The images lie in shared memory, where reading at
random costs least, and behind each a zero that the non-zeros which fill a row up to whole reads are multiplied by. Of
many images each thread has one or a few (`linear_space`): reading inputs is the bound.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import widened
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.lane_sums import IMAGES, WARP, WIDE, bind_sums, images_of, write_sums
from tvm_sparse.scheduling.cuda.linear.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.linear.space import ManyImagesSpace
from tvm_sparse.scheduling.cuda.linear.tiling import LANE_IMAGES
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, NotApplicable, Space
from tvm_sparse.scheduling.tir_writing import (
    csr_function,
    new_buffer,
    places_of_pixel,
    require_one_pixel,
    stretch,
    whole,
)
from tvm_sparse.target.gpu import GpuInfo, gpu_info

NAME = "linear_cuda"
# Of a kernel without work, and the share of the memory's rate at which weights arrive (assumed).
START_US, READ_SHARE = 2.0, 0.6
# Accesses to shared memory that 32 inputs at random places of an image take, on average.
RANDOM_ACCESSES = 3.5


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The spaces of `spec`, most promising first.

    NotApplicable where the output has more than one pixel, there is padding, or an image is too large.
    """
    require_one_pixel(spec)
    gpu = gpu_info(target)
    found: list[HandMadeSpace] = [each for each in _many_images(spec, pattern, gpu) if each.ranked]
    if (few := _few_images(spec, pattern, gpu)) is not None:
        found.append(few)
    if not found:
        needed = 4 * _stride(spec)
        raise NotApplicable(f"an image needs {needed} bytes of shared memory and there are {gpu.block_shared_bytes}")
    return sorted(found, key=lambda each: each.estimate_us or 0.0)


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space called `variant`, also where `spaces` offers a search others; None where it cannot be made."""
    require_one_pixel(spec)
    gpu = gpu_info(target)
    if not variant:
        return _few_images(spec, pattern, gpu)
    many = (ManyImagesSpace(NAME, spec, pattern, gpu, shared) for shared in LANE_IMAGES if gpu.has_clusters)
    return next((each for each in many if each.variant == variant), None)


def _many_images(spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo) -> list[ManyImagesSpace]:
    """Those worth a search: filters are taken together where they share their zeros, or have none."""
    if spec.n <= IMAGES or not gpu.has_clusters:
        return []
    vector = spec.k // spec.groups if pattern.nnz == pattern.size else pattern.vector
    together = [shared for shared in LANE_IMAGES if vector % shared == 0]
    return [ManyImagesSpace(NAME, spec, pattern, gpu, shared) for shared in together]


def _few_images(spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo) -> "LinearSpace | None":
    """None where no image fits shared memory."""
    held = gpu.block_shared_bytes // (4 * _stride(spec))
    return LinearSpace(spec, pattern.nnz, images_of(spec, min(IMAGES, held)), gpu) if held else None


def _stride(spec: ConvSpec) -> int:
    """Floats from one image in shared memory to the next: its inputs and at least one zero, in whole reads."""
    return (spec.c * spec.h * spec.w // WIDE + 1) * WIDE


class LinearSpace(HandMadeSpace):
    """The space of few images."""

    def __init__(self, spec: ConvSpec, nnz: int, images: int, gpu: GpuInfo):
        self.spec, self.images, self.gpu = spec, images, gpu
        self.inputs, self.stride = spec.c * spec.h * spec.w, _stride(spec)
        # Each row is filled up to whole reads.
        self.length = -(-(nnz + (WIDE - 1) * spec.k) // WIDE) * WIDE
        make_func = partial(csr_function, spec, self.length, self._write, "uint16")
        super().__init__(NAME, "", make_func, fold=False)

    @property
    def estimate_us(self) -> float:
        """Estimated time: to read the weights once for each group of images, inputs at random places, and to start."""
        gpu, reads = self.gpu, -(-self.spec.n // self.images) * 6 * self.length
        accesses = self.length * self.spec.n / WARP * RANDOM_ACCESSES / gpu.multiprocessors
        return START_US + (reads / (READ_SHARE * gpu.dram_bytes_s) + accesses / gpu.clock_hz) * 1e6

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """Row pointers count reads."""
        values, offsets, rows = stretch(weight, places_of_pixel(self.spec))
        counts = np.diff(rows)
        reads = np.concatenate([[0], np.cumsum(-(-counts // WIDE))]).astype(np.int32)
        # Where each non-zero moves to: behind as many more as fill the rows before it.
        to = np.arange(rows[-1]) + np.repeat(reads[:-1] * WIDE - rows[:-1], counts)
        filled, places = np.zeros(self.length, np.float32), np.full(self.length, self.inputs, np.uint16)
        filled[to], places[to] = values[: rows[-1]], offsets[: rows[-1]]
        return filled, places, reads

    def apply(self, sch: Schedule, choose: Choose) -> None:
        block, filters = bind_sums(sch, choose, self.images, self.gpu)
        stage = sch.get_sblock("stage")
        sch.compute_at(stage, block, preserve_unit_loops=True)
        wide = WIDE if self.inputs % WIDE == 0 else 1
        _, row, lane, inner = sch.split(sch.get_loops(stage)[-1], [None, filters, WARP, wide])
        sch.bind(row, "threadIdx.y")
        sch.bind(lane, "threadIdx.x")
        sch.vectorize(inner)

    def _write(self, arguments: dict[str, tirx.Var]) -> None:
        spec, images, stride, x = self.spec, self.images, self.stride, arguments["x"]
        values, offsets, rows = (arguments[name] for name in ("values", "offsets", "rows"))
        groups = -(-spec.n // images)
        staged = new_buffer("staged", (groups, images * stride), "shared.dyn")
        with T.grid(groups, images, stride) as loops, T.sblock("stage"):
            group, image, place = T.axis.remap("SSS", loops)
            T.reads(whole(x))
            T.writes(staged[group, image * stride + place])
            # An image lies in memory in the order of its places: the indices flatten to the same address. The last
            # group repeats the last image.
            n = tirx.min(group * images + image, spec.n - 1)
            value = tirx.if_then_else(place < self.inputs, widened(x[n, 0, 0, place]), tirx.const(0.0, FLOAT32))
            T.buffer_store(staged, value, [group, image * stride + place])

        def reads(group: tirx.Expr, k: tirx.Var) -> Iterable:
            return whole(staged, group), whole(values), whole(offsets), rows[k : k + 2]

        def products(group: tirx.Expr, k: tirx.Var, lane: tirx.Var, sums: tirx.Var) -> None:
            weight, at = new_buffer("weight", (WIDE,), "local"), new_buffer("at", (WIDE,), "local", "int32")
            place, end = new_buffer("place", (WIDE,), "local", "uint16"), rows[k + 1]
            with T.serial(0, tirx.floordiv(end - rows[k] + WARP - 1, WARP)) as step:
                read = rows[k] + step * WARP + lane
                # No branch: the lanes of a warp stay together, which adding up their sums relies on.
                last = tirx.min(read, end - 1)
                for to, source in ((weight, values), (place, offsets)):
                    with T.vectorized(WIDE) as i:
                        T.buffer_store(to, source[last * WIDE + i], [i])
                for i in range(WIDE):
                    inside, zero = place[i].astype("int32"), tirx.const(self.inputs, "int32")
                    T.buffer_store(at, tirx.Select(read < end, inside, zero), [i])
                    for image in range(images):
                        value = staged[group, image * stride + at[i]]
                        T.buffer_store(sums, sums[image] + weight[i] * value, [image])

        write_sums(spec, images, arguments, reads, products)


FAMILY = KernelFamily(NAME, "cuda", spaces, named, is_predicted=True, libraries=tuple(LIBRARIES.values()))
