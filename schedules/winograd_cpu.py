"""Dense 3x3 convolutions for CPUs by Winograd's F(2x2, 3x3): 16 products for four outputs instead of 36.

For layers without zeros, or with too few for a sparse kernel: zeros of a filter are none of its transform. They take
0.5 to 0.85 times as long as direct dense kernels do (docs/lab/cpu-winograd.md). Their errors are smaller in practice,
as fewer products are added up, but what bounds them is the largest input (`conv.error_bounds.winograd`), and infinity
becomes NaN; so the dense baseline stays direct.
"""

from functools import lru_cache

from tvm.target import Target

from tvm_sparse.conv.error_bounds import WINOGRAD
from tvm_sparse.conv.nchwc import NCHW
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.winograd import WinogradSpace
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "winograd_cpu"
# Of fewer non-zeros sparse kernels are faster, which multiply by them alone.
LEAST_DENSITY = 0.15


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """The only space of `spec`.

    NotApplicable where it has no 3x3 taps beside each other, a stride, groups, or half-precision tensors, or no tile
    fits its maps; or so few non-zeros that sparse kernels do less.
    """
    if pattern.density < LEAST_DENSITY:
        raise NotApplicable(f"density {pattern.density:.2g}; it is for {LEAST_DENSITY:g} and more")
    return [_space(spec, CpuInfo.of(target), thread_count(target))]


def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The same whatever the zeros."""
    return _space(spec, CpuInfo.of(target), thread_count(target)) if variant == "filters" else None


@lru_cache(maxsize=1024)
def relative_time(spec: ConvSpec, cpu: CpuInfo, threads: int) -> float:
    """Estimated time by default, as a multiple of that of a direct convolution's multiply-adds, shared evenly.

    NotApplicable as for `spaces`, whatever the zeros.
    """
    return _space(spec, cpu, threads).cost


def _space(spec: ConvSpec, cpu: CpuInfo, threads: int) -> WinogradSpace:
    if not WinogradSpace.computes(spec, cpu):
        raise NotApplicable(
            "only 3x3 taps without stride, dilation or groups are served, in float32, on maps of a tile or more"
        )
    return WinogradSpace(NAME, spec, cpu, NCHW, threads)


FAMILY = KernelFamily(NAME, "llvm", spaces, named, arithmetic=WINOGRAD, is_predicted=True, blocked=(WinogradSpace,))
