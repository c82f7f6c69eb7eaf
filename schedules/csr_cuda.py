"""Escort's direct sparse convolution for CUDA: weights as data, any number of non-zeros in little code.

The padded input is written once, where there is padding. Then a thread computes `pixels` outputs of one filter, one
below the other: for each non-zero of the filter it reads value and offset, which all threads of a warp share, and
`pixels` inputs, of which neighbouring threads read neighbours. Where the rows do not divide, the last threads start
higher and compute some outputs twice.
"""

import math
from functools import partial

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx.script import builder as T

from tvm_sparse.conv.conv2d import epilogue, padded, widened
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Choose, HandMadeSpace, Space, divisors
from tvm_sparse.scheduling.tir_writing import csr_function, epilogue_reads, new_buffer, stretch, whole
from tvm_sparse.target.gpu import gpu_info

NAME = "csr_cuda"
# Outputs of a thread: more share the read of value and offset, fewer make more threads.
PIXELS = (4, 8, 2, 1)
# Threads that keep a multiprocessor busy.
THREADS = 1024


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some."""
    outputs, busy = math.prod(spec.output_shape), THREADS * gpu_info(target).multiprocessors
    fitting = [pixels for pixels in PIXELS if pixels <= spec.out_h]
    fitting.sort(key=lambda pixels: outputs / pixels < busy)
    return [CsrPixelsSpace(spec, pattern.nnz, pixels) for pixels in fitting]


class CsrPixelsSpace(HandMadeSpace):
    """The space of one number of outputs a thread."""

    def __init__(self, spec: ConvSpec, nnz: int, pixels: int):
        make_func = partial(csr_function, spec, nnz, partial(_write, spec, pixels))
        super().__init__(NAME, f"pixels{pixels}", make_func, fold=False)
        self.spec = spec

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        _, _, height, width = self.spec.padded_shape
        c, r, s = np.ogrid[: self.spec.c, : self.spec.r, : self.spec.s]
        places = (c * height + r * self.spec.dilation[0]) * width + s * self.spec.dilation[1]
        return stretch(weight, places)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        # At most 256 x 4 threads a block.
        threads = choose.one_of("threads", (32, 64, 128, 256), 64)
        filters = divisors(self.spec.k, 4)
        filters_block = choose.one_of("filters", filters, filters[-1])
        n, k, group, column = sch.get_loops(sch.get_sblock("conv"))
        k_outer, k_inner = sch.split(k, [None, filters_block])
        sch.reorder(n, group, column, k_outer, k_inner)
        block, thread = sch.split(sch.fuse(n, group, column), [None, threads])
        sch.reorder(block, k_outer, k_inner, thread)
        for loop, axis in (
            (block, "blockIdx.x"),
            (k_outer, "blockIdx.y"),
            (k_inner, "threadIdx.y"),
            (thread, "threadIdx.x"),
        ):
            sch.bind(loop, axis)
        if any(self.spec.padding):
            block, thread = sch.split(sch.fuse(*sch.get_loops(sch.get_sblock("pack"))), [None, 256])
            sch.bind(block, "blockIdx.x")
            sch.bind(thread, "threadIdx.x")


def _write(spec: ConvSpec, pixels: int, arguments: dict[str, tirx.Var]) -> None:
    """The body of the function: stage ``pack``, where there is padding, and stage ``conv``."""
    _, _, height, width = spec.padded_shape
    x, values, offsets, rows, y = (arguments[name] for name in ("x", "values", "offsets", "rows", "y"))
    packed = None
    if any(spec.padding):
        packed = new_buffer("packed", (spec.n, spec.c * height * width))
        with T.grid(spec.n, spec.c, height, width) as loops, T.sblock("pack"):
            n, c, row, column = T.axis.remap("SSSS", loops)
            T.reads(whole(x, n, c))
            T.writes(packed[n, (c * height + row) * width + column])
            T.buffer_store(packed, padded(spec, x, n, c, row, column), [n, (c * height + row) * width + column])

    def source(n: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        # Without padding an image lies in memory as the packed one would; the indices flatten to the same address.
        return widened(x[n, 0, 0, place]) if packed is None else packed[n, place]

    (st_h, st_w), last = spec.stride, spec.out_h - pixels
    with T.grid(spec.n, spec.k, -(-spec.out_h // pixels), spec.out_w) as loops, T.sblock("conv"):
        n, k, group, column = T.axis.remap("SSSS", loops)
        first = group * pixels if spec.out_h % pixels == 0 else tirx.min(group * pixels, last)
        index = [[n, k, first + i, column] for i in range(pixels)]
        region = (n, k, slice(first, first + pixels), column)
        own = (whole(values), whole(offsets), rows[k : k + 2], *epilogue_reads(spec, arguments, region))
        T.reads(whole(x if packed is None else packed, n), *own)
        T.writes(y[region])
        acc = new_buffer("acc", (pixels,), "local")
        for i in range(pixels):
            T.buffer_store(acc, tirx.const(0.0, FLOAT32), [i])
        with T.serial(rows[k], rows[k + 1]) as e:
            for i in range(pixels):
                place = offsets[e] + (first + i) * st_h * width + column * st_w
                T.buffer_store(acc, acc[i] + values[e] * source(n, place), [i])
        for i in range(pixels):
            T.buffer_store(y, epilogue(spec, arguments, acc[i], index[i]), index[i])


FAMILY = KernelFamily(NAME, "cuda", spaces)
