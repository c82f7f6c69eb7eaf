"""The spaces of `byte_kernel`: those of `line_space`, of a convolution of fours of channels."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv.byte_form import ByteForm
from tvm_sparse.conv.codes import CODES, FOUR, LEAST_SIGNED
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.byte_depthwise import ByteDepthwiseKernel
from tvm_sparse.scheduling.cpu.byte_groups import parts_of
from tvm_sparse.scheduling.cpu.byte_kernel import ByteKernel
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit
from tvm_sparse.scheduling.cpu.line_space import LineSpace
from tvm_sparse.scheduling.cpu.lines import Lines
from tvm_sparse.scheduling.kernel import Kernel, kernel_of
from tvm_sparse.scheduling.space import Choose, Decisions, NotApplicable, WrittenSpace, divisors

# Of an output, beside what its sum begins with.
MOST_PRODUCTS = 2**30 // (CODES * -LEAST_SIGNED)

# The variant of depthwise kernels, and tasks of a thread, where there are several.
DEPTHWISE, TASKS = "depthwise", 4


def require_bytes(spec: ConvSpec, target: Target) -> ByteUnit:
    """What multiplies bytes.

    NotApplicable for a convolution that is not of integers, or in such groups, or no machine for it.
    """
    channels = spec.weight_shape[1]
    if not spec.is_quantised:
        raise NotApplicable("its input and weight are not known to be integers of eight bits")
    if spec.groups > 1 and channels % FOUR and FOUR % channels:
        raise NotApplicable(f"groups of {channels} channels, and of several only those that fours do not straddle")
    if (products := math.prod(spec.weight_shape[1:])) > MOST_PRODUCTS:
        raise NotApplicable(f"{products} products an output, at most {MOST_PRODUCTS}, whose sum is an int32")
    unit = ByteUnit.of(target)
    if unit is None:
        raise NotApplicable("the target has no instructions for them: those of AVX2, or of AArch64's dotprod")
    return unit


def is_depthwise(spec: ConvSpec) -> bool:
    """Whether `byte_depthwise` computes it."""
    return 1 < spec.groups == spec.c == spec.k and spec.dilation == (1, 1)


def fours_in(pattern: SparsityPattern, unit: ByteUnit | None) -> int:
    """Those that a kernel multiplies: a wide one is two where products are int16."""
    return pattern.fours + (pattern.wide_fours if unit is not None and unit.is_wide else 0)


class FourLines(Lines):
    """Lines of a convolution whose channels are fours of another's, but do not lie so in memory as they are read."""

    is_direct = False


class ByteSpace(LineSpace):
    """The space of one tile of `spec`; of kernels in a network where it has a `form`."""

    def __init__(
        self,
        name: str,
        spec: ConvSpec,
        lines: Lines,
        pattern: SparsityPattern,
        unit: ByteUnit,
        threads: int,
        form: ByteForm | None = None,
    ):
        lines = (Lines if form and not unit.moved else FourLines)(
            lines.spec, lines.lanes, lines.rows, lines.width, lines.parts
        )
        self.fours = fours_in(pattern, unit)
        super().__init__(name, lines, self.fours // parts_of(spec), threads)
        self.spec, self.pattern, self.unit, self.form = spec, pattern, unit, form

    def kernel_in(self, form: ByteForm, weight: np.ndarray, decisions: Decisions | None) -> Kernel:
        """The kernel in a network."""
        space = ByteSpace(self.schedule, self.spec, self.lines, self.pattern, self.unit, self.threads, form)
        return replace(kernel_of(space, space.scheduled(decisions), weight), form=form)

    def _kernel(self, decisions: Mapping[str, Any]) -> ByteKernel:
        channels, filters = decisions["channels"], decisions["filters"]
        if self.form is not None and self.form.stages:
            # Of which four are stored together.
            filters = next(each for each in divisors(self.lines.spec.k) if each % filters == each % FOUR == 0)
        return ByteKernel(self.lines, self.fours, channels, filters, self.spec, self.unit, self.form)


class ByteDepthwiseSpace(WrittenSpace):
    """The space of depthwise kernels: how many fours of channels a task has; in a network as `ByteSpace`."""

    def __init__(self, name: str, spec: ConvSpec, unit: ByteUnit, threads: int, form: ByteForm | None = None):
        super().__init__(name, DEPTHWISE)
        self.spec, self.unit, self.threads, self.form = spec, unit, threads, form

    def kernel_in(self, form: ByteForm, weight: np.ndarray, decisions: Decisions | None) -> Kernel:
        """The kernel in a network."""
        space = ByteDepthwiseSpace(self.schedule, self.spec, self.unit, self.threads, form)
        return replace(kernel_of(space, space.scheduled(decisions), weight), form=form)

    def apply(self, sch: Schedule, choose: Choose) -> None:
        fours = ByteDepthwiseKernel(self.spec, self.unit, 1).fours
        # A task allocates memory, and threads should end together.
        most = fours if self.threads == 1 else max(1, fours * self.spec.n // (TASKS * self.threads))
        candidates = divisors(fours)
        self.decide(sch, choose, "fours", candidates, max(each for each in candidates if each <= most))

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        return self._kernel(decisions).written()

    def packed(self, weight: np.ndarray, decisions: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        return self._kernel(decisions).packed(weight)

    def _kernel(self, decisions: Mapping[str, Any]) -> ByteDepthwiseKernel:
        return ByteDepthwiseKernel(self.spec, self.unit, decisions["fours"], self.form)
