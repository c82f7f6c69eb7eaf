"""Kernels of every CPU schedule on random convolutions, weights and decisions, against the float64 reference.

570 kernels in all; integer-valued cases must be exact, all others lie within the bound of `tvm_sparse.reference`.
Outputs start as NaN, so an element that a kernel does not write is found.
"""

import random

import pytest
from random_cases import random_case, random_kernel

from tvm_sparse import environment, space
from tvm_sparse.pattern import SparsityPattern

TARGET = environment.resolve_target('{"kind":"llvm","num-cores":2}')
# Cases with default decisions, and with random ones. A case takes 0.1 to 0.5 s, nearly all of it to build.
CASES = {"folded_cpu": (300, 60), "csr_cpu": (100, 20), "dense_cpu": (70, 20)}
BATCH = 10


def batches():
    """Schedule, whether decisions are random, and the seeds of a few cases."""
    for schedule, counts in CASES.items():
        for is_random, count in zip((False, True), counts, strict=True):
            for start in range(0, count, BATCH):
                yield pytest.param(
                    schedule, is_random, range(start, start + BATCH), id=f"{schedule}-{is_random}-{start}"
                )


@pytest.mark.parametrize(("schedule", "is_random", "seeds"), list(batches()))
def test_matches_the_reference(schedule, is_random, seeds):
    for seed in seeds:
        choose = random.Random(f"{schedule} {is_random} {seed}").choice
        case = random_case(choose)
        spaces, reasons = space.spaces(case.spec, SparsityPattern.of(case.weight), TARGET, [schedule])
        assert spaces, reasons
        each = choose(spaces)
        kernel = random_kernel(each, case.weight, choose) if is_random else space.apply_trace(each, case.weight)
        assert case.worst(kernel, TARGET) <= 1, f"{each.name}, seed {seed}, {case!r}"


def test_all_schedules_are_covered():
    assert {*CASES, "generated_cpu"} == set(space.names(TARGET))
