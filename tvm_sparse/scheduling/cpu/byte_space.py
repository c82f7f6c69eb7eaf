"""The spaces of `byte_kernel`: those of `line_space`, of a convolution of fours of channels."""

import math
from collections.abc import Mapping
from typing import Any

from tvm.target import Target
from tvm.target.codegen import target_has_features

from tvm_sparse.conv.codes import CODES, FOUR, LARGEST_SIGNED
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.byte_kernel import LANES, ByteKernel, FourLines
from tvm_sparse.scheduling.cpu.line_space import LineSpace
from tvm_sparse.scheduling.cpu.lines import Lines
from tvm_sparse.scheduling.space import NotApplicable
from tvm_sparse.target.cpu_info import CpuInfo

# Of an output, beside what its sum begins with.
MOST_PRODUCTS = 2**30 // (CODES * LARGEST_SIGNED)


def require_bytes(spec: ConvSpec, target: Target) -> None:
    """Raise NotApplicable for a convolution that is not of integers in fours of channels, or no machine for it."""
    if not spec.is_quantised:
        raise NotApplicable("its input and weight are not known to be integers of eight bits")
    if spec.groups > 1 or spec.c % FOUR:
        raise NotApplicable(f"{spec.c} input channels in {spec.groups} groups, and only fours in one are served")
    if (products := math.prod(spec.weight_shape[1:])) > MOST_PRODUCTS:
        raise NotApplicable(f"{products} products an output, at most {MOST_PRODUCTS}, whose sum is an int32")
    if CpuInfo.of(target).lanes != LANES or not target_has_features("avx512vnni", target):
        raise NotApplicable("the target has no AVX-512 VNNI")


class ByteSpace(LineSpace):
    """The space of one tile of `spec`."""

    def __init__(self, name: str, spec: ConvSpec, lines: Lines, pattern: SparsityPattern, threads: int):
        lines = FourLines(lines.spec, lines.lanes, lines.rows, lines.width, lines.parts)
        super().__init__(name, lines, pattern.fours, threads)
        self.spec = spec

    def _kernel(self, decisions: Mapping[str, Any]) -> ByteKernel:
        return ByteKernel(self.lines, self.nnz, decisions["channels"], decisions["filters"], self.spec)
