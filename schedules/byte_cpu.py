"""Direct sparse convolution of eight-bit integers for CPUs: fours of input channels are data."""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.byte_groups import of_fours, parts_of
from tvm_sparse.scheduling.cpu.byte_space import (
    DEPTHWISE,
    ByteDepthwiseSpace,
    ByteSpace,
    fours_in,
    is_depthwise,
    require_bytes,
)
from tvm_sparse.scheduling.cpu.line_space import ranked, tiles, variant_of
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count

NAME = "byte_cpu"
# Tiles offered to the search.
OFFERED = 3


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    Raises
    ------
    NotApplicable
        The convolution is not known to be one of integers, or the machine cannot multiply these.
    """
    unit, threads = require_bytes(spec, target), thread_count(target)
    if is_depthwise(spec):
        return [ByteDepthwiseSpace(NAME, spec, unit, threads)]
    fours = fours_in(pattern, unit) // parts_of(spec)
    found = dict.fromkeys(each.lines for each in ranked(of_fours(spec), fours, CpuInfo.of(target), threads))
    return [ByteSpace(NAME, spec, each, pattern, unit, threads) for each in list(found)[:OFFERED]]


def named(spec: ConvSpec, pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
    """The space of a tile, whether or not it is among those offered."""
    unit, threads = require_bytes(spec, target), thread_count(target)
    if is_depthwise(spec):
        return ByteDepthwiseSpace(NAME, spec, unit, threads) if variant == DEPTHWISE else None
    found = (each for each in tiles(of_fours(spec), CpuInfo.of(target)) if variant == variant_of(each))
    lines = next(found, None)
    return ByteSpace(NAME, spec, lines, pattern, unit, threads) if lines is not None else None


FAMILY = KernelFamily(NAME, "llvm", spaces, named, is_predicted=True, takes_bytes=True)
