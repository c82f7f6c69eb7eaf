"""Kernels of weights of zeros alone: right on CPUs and GPUs, in all layouts and types, and of no other weight."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tvm
from cuda_emulator import run_emulated
from random_convolutions import Case, call, random_case
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.nchwc import Layouts
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import bias_cpu, bias_cuda
from tvm_sparse.schedules.lookup import bias_schedule, find_space, spaces_of
from tvm_sparse.scheduling.bias_space import BlockedBiasSpace
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

CPU, CUDA = (
    resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 2}),
    resolve_target({"kind": "cuda", "arch": "sm_90"}),
)
FULL = ConvSpec(2, 8, 9, 7, 20, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True, relu_max=1.5)
LINEAR = ConvSpec(5, 12, 1, 1, 33, 1, 1, bias=True, residual=True)


def zeros(spec: ConvSpec) -> Case:
    """Its weight is zero, in two ways."""
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[0] = -0.0
    return Case(spec, weight, 0, integers=False)


def kernel_of(case: Case, target: Target):
    """What searching offers, which is one space."""
    (space,), _ = spaces_of(case.spec, SparsityPattern.of(case.weight), target)
    assert space.name == bias_schedule(target)
    return apply_decisions(space, case.weight)


@pytest.mark.parametrize("seed", range(8))
def test_random_convolutions(seed: int) -> None:
    case = zeros(random_case(random.Random(seed).choice).spec)
    assert case.worst(kernel_of(case, CPU), CPU) <= 1


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("spec", [FULL, LINEAR], ids=["convolution", "linear"])
def test_types(spec: ConvSpec, dtype: str) -> None:
    case = zeros(replace(spec, dtype=dtype))
    assert case.worst(kernel_of(case, CPU), CPU) <= 1


@pytest.mark.parametrize("spec", [FULL, replace(FULL, k=32, residual=False)], ids=["filled", "whole"])
@pytest.mark.parametrize("x", [False, True])
def test_blocks_of_channels(spec: ConvSpec, x: bool) -> None:
    layouts = Layouts(16, x=x, residual=spec.residual, y=True)
    space, case = BlockedBiasSpace(bias_cpu.NAME, spec, CpuInfo.of(CPU), layouts), zeros(spec)
    kernel = replace(apply_decisions(space, case.weight), layouts=layouts)
    arguments = reference.random_arguments(spec, 0)
    laid_out = {name: layouts.laid_out(name, array) for name, array in arguments.items()}
    found = call_blocked(kernel, spec, laid_out, layouts)
    assert case.error(arguments, found) <= 1


def call_blocked(kernel, spec, arguments, layouts):
    y = tvm.runtime.tensor(layouts.laid_out("y", np.full(spec.output_shape, np.nan, np.float32)))
    lowering.build(kernel.func, CPU)["main"](*map(tvm.runtime.tensor, arguments.values()), y)
    return layouts.as_nchw("y", y.numpy(), spec.output_shape)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("spec", [FULL, LINEAR], ids=["convolution", "linear"])
def test_emulated_kernels(spec: ConvSpec, dtype: str) -> None:
    case = zeros(replace(spec, dtype=dtype))
    y = run_emulated(case, kernel_of(case, CUDA), CUDA)
    assert case.error(reference.random_arguments(case.spec, 0), y) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [FULL, LINEAR], ids=["convolution", "linear"])
def test_on_a_gpu(spec: ConvSpec) -> None:
    case, arguments = zeros(spec), reference.random_arguments(spec, 0)
    kernel = kernel_of(case, CUDA)
    y = call(lowering.build(kernel.func, CUDA), spec, arguments, kernel.constants, tvm.cuda(0))
    assert case.error(arguments, y) <= 1


@pytest.mark.parametrize(("schedule", "target"), [(bias_cpu, CPU), (bias_cuda, CUDA)], ids=["cpu", "cuda"])
def test_serves_no_other_weight(schedule, target) -> None:
    weight = np.zeros(FULL.weight_shape, np.float32)
    weight[3, 2, 1, 0] = 1
    pattern = SparsityPattern.of(weight)
    with pytest.raises(UsageError, match="not all of its weights are zero"):
        find_space(schedule.NAME, FULL, pattern, target)
    spaces, reasons = spaces_of(FULL, pattern, target)
    assert schedule.NAME not in reasons and schedule.NAME not in {each.schedule for each in spaces}
