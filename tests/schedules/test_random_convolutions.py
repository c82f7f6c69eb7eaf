"""Kernels of the CPU schedules on random convolutions, weights and decisions, against the float64 reference.

34 kernels, six times as many with ``-m exhaustive``, and more by `scripts/stress/check_kernels.py`; integer-valued
cases must be exact, all others lie within the bound of `conv.reference`. Outputs start as NaN, so an element that a
kernel does not write is found.
"""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_convolutions import random_case, random_kernel

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.schedules.lookup import schedule_names, spaces_of
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":2}')
# Cases with default decisions, and with random ones. A case takes 0.1 to 0.5 s, nearly all of it to build.
CASES = {"folded_cpu": (8, 6), "csr_cpu": (5, 4), "dense_cpu": (6, 5)}


@pytest.mark.parametrize("times", [1, pytest.param(6, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("is_random", [False, True], ids=["default decisions", "random decisions"])
@pytest.mark.parametrize("schedule", CASES)
def test_matches_the_reference(schedule, is_random, times):
    checked, count = 0, times * CASES[schedule][is_random]

    # The same cases every time: what fails in CI fails at the desk.
    @settings(max_examples=count, derandomize=True, suppress_health_check=HealthCheck)
    @given(st.data())
    def check(data):
        nonlocal checked

        def choose(options):
            return data.draw(st.sampled_from(options))

        case = random_case(choose)
        spaces, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), TARGET, [schedule])
        assert spaces, reasons
        each = choose(spaces)
        # Not drawn inside TVM: what hypothesis raises to end a case does not pass through a foreign function.
        decide = random.Random(choose(range(2**16))).choice
        kernel = random_kernel(each, case.weight, decide) if is_random else apply_decisions(each, case.weight)
        assert case.worst(kernel, TARGET) <= 1, f"{each.name}, {case!r}"
        checked += 1

    check()
    assert checked >= count


def test_all_schedules_are_covered():
    # Others serve few of these; see test_linear_spaces.py, test_vector_cpu.py, test_winograd_cpu.py, and of `byte_cpu`
    # tests/scheduling/test_byte_kernel.py.
    others = {"byte_cpu", "generated_cpu", "linear_cpu", "vector_cpu", "winograd_cpu"}
    assert {*CASES, *others} == set(schedule_names(TARGET))
