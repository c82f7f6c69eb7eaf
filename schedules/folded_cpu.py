"""Folded convolution for CPUs: weights as immediates, vectors along flattened output rows.

One non-zero costs one vector multiply-add per pixel vector, with the weight broadcast from the constant pool and shared
by the tile's vectors. The structure is that of `cpu.rows`.
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.cuts import Threads
from tvm_sparse.scheduling.cpu.fit import SPARSE
from tvm_sparse.scheduling.cpu.rows import RowSpace, layout_named, layouts, packs
from tvm_sparse.scheduling.family import Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.cpu_info import LINE, CpuInfo

NAME = "folded_cpu"
# Non-zeros a kernel may hold: in assembly 15 us of one core for each, 5 s in all, and code that
# outgrows the caches and runs no faster than `csr_cpu`, whose weights are data (512x512x3x3 on 7x7 at density 0.1: 689
# us folded, 607 as CSR); in LLVM's own code minutes.
MAX_NNZ, MAX_NNZ_LLVM = 300_000, 40_000
# Layouts offered to the search, each with every place to pack.
LAYOUTS = 3


def most_non_zeros(target: Target) -> int:
    """Non-zeros of a weight that is folded, at most."""
    return MAX_NNZ if CpuInfo.of(target).register_name else MAX_NNZ_LLVM


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    NotApplicable where the weight has more than `MAX_NNZ` non-zeros, or `MAX_NNZ_LLVM` where kernels are not written in
    assembly.
    """
    _require_few(pattern, target)
    cpu = CpuInfo.of(target)
    threads = Threads.of(target, pattern.nnz)
    offered = layouts(spec, cpu.lanes, _straddling(spec, cpu), threads)[:LAYOUTS]
    ways = [(layout, pack) for layout in offered for pack in packs(spec, layout)]
    if not threads.packs_by_rows(spec):
        ways.sort(key=lambda way: way[1] != "root")
    return [RowSpace(NAME, spec, *way, cpu, True, threads) for way in ways]


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space called `variant`, whether or not `spaces` offers its layout today; raises as that does."""
    _require_few(pattern, target)
    cpu = CpuInfo.of(target)
    found = layout_named(spec, cpu.lanes, variant)
    threads = Threads.of(target, pattern.nnz)
    return RowSpace(NAME, spec, *found, cpu, True, threads) if found else None


def _require_few(pattern: SparsityPattern, target: Target) -> None:
    """NotApplicable where a weight has more non-zeros than are folded."""
    most = most_non_zeros(target)
    if pattern.nnz > most:
        streams = "make code that streams no faster than data would"
        raise NotApplicable(f"{pattern.nnz} non-zeros {streams}; at most {most} are folded")


def _straddling(spec: ConvSpec, cpu: CpuInfo) -> float:
    """How many times as long as others kernels take whose loads straddle lines.

    All do but those of vectors as long as a line that begin a row: of three taps of strided columns two.
    """
    return SPARSE.straddling_of_lines if cpu.lanes == LINE and spec.stride[1] > 1 else SPARSE.straddling


FAMILY = KernelFamily(NAME, "llvm", spaces, named, code=Code.FOLDED, is_predicted=True)
