"""Kernels of MetaSchedule's generated space, folded afterwards, against the reference."""

import random

import pytest
from random_convolutions import random_case

from tvm_sparse.autotune.search import evolutionary_search
from tvm_sparse.autotune.search.evolutionary_search import SharedModel, SpaceSearch
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":2}')


def proposed(seed, count=4):
    """A random case and kernels for it; none where no candidate is worth a trial."""
    case = random_case(random.Random(f"generated {seed}").choice)
    each = find_space("generated_cpu", case.spec, SparsityPattern.of(case.weight), TARGET)
    traces = SpaceSearch(each, TARGET, SharedModel(seed), seed + 1, trials=count, batch=count).propose() or []
    return case, [apply_decisions(each, case.weight, trace) for trace in traces]


@pytest.mark.parametrize("seeds", [1, pytest.param(6, marks=pytest.mark.exhaustive)])
def test_matches_the_reference(monkeypatch, seeds):
    monkeypatch.setattr(evolutionary_search, "POPULATION", 12)
    checked = 0
    for seed in range(seeds):
        case, kernels = proposed(seed)
        for kernel in kernels:
            assert kernel.constants == ()
            assert case.worst(kernel, TARGET) <= 1, case
            checked += 1
    # Where maps are too small for vectors, no candidate is worth a trial.
    assert checked >= 2 * seeds
