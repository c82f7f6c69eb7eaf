"""Dense 3x3 convolutions for CPUs by Winograd's F(2x2, 3x3): 16 products for four outputs instead of 36.

For layers without zeros, or with too few for a sparse kernel: zeros of a filter are none of its transform. They take
0.5 to 0.85 times as long as direct dense kernels do (docs/lab/cpu-winograd.md). Their errors are smaller in practice,
as fewer products are added up, but what bounds them is the largest input (`conv.error_bounds.winograd`), and infinity
becomes NaN; so the dense baseline stays direct.
"""

import re
from functools import lru_cache

from tvm.target import Target

from tvm_sparse.conv.error_bounds import WINOGRAD
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.winograd import MOST_VECTORS, WinogradSpace, require_served, vectors_of
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "winograd_cpu"
# Of fewer non-zeros sparse kernels are faster, which multiply by them alone.
LEAST_DENSITY = 0.15


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    Raises
    ------
    NotApplicable
        It has no 3x3 taps beside each other, a stride, groups, or half-precision tensors; or so few non-zeros that
        sparse kernels do less.
    """
    require_served(spec)
    if pattern.density < LEAST_DENSITY:
        raise NotApplicable(f"density {pattern.density:.2g}; it is for {LEAST_DENSITY:g} and more")
    return [*_ranked(spec, CpuInfo.of(target), thread_count(target))]


def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of blocks of so many filters, ``filters32``, whatever the zeros and the threads."""
    cpu, found = CpuInfo.of(target), re.fullmatch(r"filters([1-9]\d{0,3})", variant)
    vectors, rest = divmod(int(found[1]), cpu.lanes) if found else (0, 0)
    if rest or not 0 < vectors <= MOST_VECTORS:
        return None
    return WinogradSpace(NAME, spec, cpu, vectors, thread_count(target))


@lru_cache(maxsize=1024)
def relative_time(spec: ConvSpec, cpu: CpuInfo, threads: int) -> float:
    """Estimated time by default, as a multiple of that of a direct convolution's multiply-adds, shared evenly.

    Raises
    ------
    NotApplicable
        As `spaces`, whatever the zeros.
    """
    return _ranked(spec, cpu, threads)[0].cost


def _ranked(spec: ConvSpec, cpu: CpuInfo, threads: int) -> list[WinogradSpace]:
    found = [WinogradSpace(NAME, spec, cpu, each, threads) for each in vectors_of(spec, cpu, threads)]
    return sorted(found, key=lambda space: space.cost)


FAMILY = KernelFamily(NAME, "llvm", spaces, named, arithmetic=WINOGRAD, is_predicted=True)
