"""Kernels of tensors in half precision on random convolutions, against the float64 reference of what is stored."""

import random

import pytest
from random_convolutions import random_case, random_kernel, random_linear_case

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.storage import HALVES
from tvm_sparse.schedules import spaces_of
from tvm_sparse.target.resolve import resolve_target

CPU = resolve_target('{"kind":"llvm","num-cores":1}')
# What draws the convolutions of a schedule, and how many.
CPU_CASES = {
    "dense_cpu": (random_case, 6),
    "folded_cpu": (random_case, 6),
    "csr_cpu": (random_case, 6),
    "linear_cpu": (random_linear_case, 6),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("schedule", CPU_CASES)
def test_matches_the_reference_on_a_cpu(schedule, dtype):
    draw, count = CPU_CASES[schedule]
    for seed in range(count):
        choose = random.Random(seed).choice
        case = draw(choose).stored_in(dtype)
        found, _ = spaces_of(case.spec, SparsityPattern.of(case.weight), CPU, [schedule])
        for space in found[:1]:
            kernel = random_kernel(space, case.weight, choose)
            assert case.worst(kernel, CPU) <= 1, f"{space.name}, {case!r}"
