"""Dense convolution for CPUs, by vectors of filters (`cpu.nchwc`), channels (`cpu.channels`) or rows (`cpu.rows`).

The baseline every folded kernel must beat, and what a layer falls to that is not sparse enough. In a network its
tensors lie in blocks of channels where they can (`compiler.layouts`), and then all of ResNet-50 takes 0.8 to 0.95 times
as long as in ONNX Runtime (docs/lab/cpu-layouts.md).
"""

import math
import re
from functools import lru_cache

from tvm.target import Target

from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.nchwc import NCHW
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.channels import ChannelSpace, serves
from tvm_sparse.scheduling.cpu.cuts import Threads
from tvm_sparse.scheduling.cpu.depthwise_nchwc import DepthwiseNCHWcSpace
from tvm_sparse.scheduling.cpu.expansion import ExpandedSpace
from tvm_sparse.scheduling.cpu.nchwc import NCHWcSpace
from tvm_sparse.scheduling.cpu.product import ProductSpace
from tvm_sparse.scheduling.cpu.rows import RowSpace, layout_named, layouts, packs
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "dense_cpu"
# Layouts of rows offered to the search; fewer than for folded kernels, since all of them run near the machine's peak.
LAYOUTS = 2
# By vectors of filters an output as (N, C, H, W) is transposed as it is stored. Where it is so large that it leaves the
# level-1 cache, and each of its values is a sum of so few products for each lane, that takes up to half of the time:
# 3->64 3x3 on 224x224 by rows takes 0.49 of it, 3->32 5x5 on 128x128 0.63, 1->256 of 10 taps and stride 5 on a line of
# 16,000 0.79, 64->256 1x1 on 40x40 0.93, but 3->64 7x7, stride 2, 1.03 (AVX-512).
LEAST_STORED_BYTES, FEW_PRODUCTS = 500_000, 5

_SpaceOfOne = NCHWcSpace | ChannelSpace | RowSpace


def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first; every convolution has some."""
    cpu = CpuInfo.of(target)
    if is_linear(spec):
        return [ProductSpace(NAME, spec, cpu.lanes, thread_count(target))]
    return [*_ranked(spec, cpu, thread_count(target))]


@lru_cache(maxsize=1024)
def imbalance(spec: ConvSpec, cpu: CpuInfo, threads: int) -> float:
    """How many times as long as one thread's share of the work of a convolution `threads` take by default."""
    return _ranked(spec, cpu, threads)[0].imbalance


def _ranked(spec: ConvSpec, cpu: CpuInfo, count: int) -> list[_SpaceOfOne]:
    threads = Threads(count, math.prod(spec.weight_shape), cpu.lanes)
    by_rows = [(each, packs(spec, each)[0]) for each in layouts(spec, cpu.lanes, threads=threads)[:LAYOUTS]]
    if spec.groups > 1:
        # To pack all of the input first takes up to 1.7 times as long as to pack blocks of it.
        by_rows.sort(key=lambda way: way[1] == "root")
    found: list[_SpaceOfOne] = [RowSpace(NAME, spec, *way, cpu, False, threads) for way in by_rows]
    if NCHWcSpace.computes(spec, cpu):
        by_filters: list[_SpaceOfOne] = [NCHWcSpace(NAME, spec, cpu, NCHW, count)]
        return [*found, *by_filters] if mostly_stores(spec, cpu) else [*by_filters, *found]
    # By half as many channels as a register has where it must.
    channels = next((each for each in (cpu.lanes, cpu.lanes // 2) if serves(spec, each)), 0)
    return [ChannelSpace(NAME, spec, cpu, channels, count), *found] if channels else found


def mostly_stores(spec: ConvSpec, cpu: CpuInfo) -> bool:
    """Whether it takes a convolution as long to store its output as to multiply, so that it is computed by rows."""
    return spec.output_bytes >= LEAST_STORED_BYTES and math.prod(spec.weight_shape[1:]) <= FEW_PRODUCTS * cpu.lanes


def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of a layout of rows or a block of channels, offered or not."""
    cpu, threads = CpuInfo.of(target), Threads.of(target, math.prod(spec.weight_shape))
    if is_linear(spec):
        return None
    if channels := re.fullmatch(r"channels([1-9]\d?)", variant):
        count = int(channels[1])
        fits = count <= cpu.lanes and serves(spec, count)
        return ChannelSpace(NAME, spec, cpu, count, threads.count) if fits else None
    rows = layout_named(spec, cpu.lanes, variant)
    return RowSpace(NAME, spec, *rows, cpu, False, threads) if rows else None


FAMILY = KernelFamily(
    NAME, "llvm", spaces, named, is_dense=True, blocked=(NCHWcSpace, DepthwiseNCHWcSpace), joined=ExpandedSpace
)
