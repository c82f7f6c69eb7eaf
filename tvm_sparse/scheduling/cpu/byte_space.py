"""The spaces of `byte_kernel`: those of `line_space`, of a convolution of fours of channels."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tvm.target import Target
from tvm.target.codegen import target_has_features

from tvm_sparse.conv.byte_form import ByteForm
from tvm_sparse.conv.codes import CODES, FOUR, LEAST_SIGNED
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.byte_kernel import LANES, ByteKernel
from tvm_sparse.scheduling.cpu.line_space import LineSpace
from tvm_sparse.scheduling.cpu.lines import Lines
from tvm_sparse.scheduling.kernel import Kernel, kernel_of
from tvm_sparse.scheduling.space import Decisions, NotApplicable, divisors
from tvm_sparse.target.cpu_info import CpuInfo

# Of an output, beside what its sum begins with.
MOST_PRODUCTS = 2**30 // (CODES * -LEAST_SIGNED)


def require_bytes(spec: ConvSpec, target: Target) -> None:
    """Raise NotApplicable for a convolution that is not of integers in one group, or no machine for it."""
    if not spec.is_quantised:
        raise NotApplicable("its input and weight are not known to be integers of eight bits")
    if spec.groups > 1:
        raise NotApplicable(f"{spec.groups} groups of channels, and only one is served")
    if (products := math.prod(spec.weight_shape[1:])) > MOST_PRODUCTS:
        raise NotApplicable(f"{products} products an output, at most {MOST_PRODUCTS}, whose sum is an int32")
    if CpuInfo.of(target).lanes != LANES or not target_has_features("avx512vnni", target):
        raise NotApplicable("the target has no AVX-512 VNNI")


class FourLines(Lines):
    """Lines of a convolution whose channels are fours of another's, but do not lie so in memory."""

    is_direct = False


class ByteSpace(LineSpace):
    """The space of one tile of `spec`; of kernels in a network where it has a `form`, and their `bias` of integers."""

    def __init__(
        self,
        name: str,
        spec: ConvSpec,
        lines: Lines,
        pattern: SparsityPattern,
        threads: int,
        form: ByteForm | None = None,
        bias: np.ndarray | None = None,
    ):
        lines = (Lines if form else FourLines)(lines.spec, lines.lanes, lines.rows, lines.width, lines.parts)
        super().__init__(name, lines, pattern.fours, threads)
        self.spec, self.pattern, self.form, self.bias = spec, pattern, form, bias

    def kernel_in(
        self, form: ByteForm, bias: np.ndarray | None, weight: np.ndarray, decisions: Decisions | None
    ) -> Kernel:
        """The kernel in a network."""
        space = ByteSpace(self.schedule, self.spec, self.lines, self.pattern, self.threads, form, bias)
        return replace(kernel_of(space, space.scheduled(decisions), weight), form=form)

    def _kernel(self, decisions: Mapping[str, Any]) -> ByteKernel:
        channels, filters = decisions["channels"], decisions["filters"]
        if self.form is not None and self.form.stages:
            # Of which four are stored together.
            filters = next(each for each in divisors(self.spec.k) if each % filters == each % FOUR == 0)
        return ByteKernel(self.lines, self.nnz, channels, filters, self.spec, self.form, self.bias)
