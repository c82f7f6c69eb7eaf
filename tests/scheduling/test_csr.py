"""Escort's schedules that keep weights as data: their format, and their numerics on the CPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_convolutions import Case, random_case, random_kernel, random_weight, run
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import csr_cpu
from tvm_sparse.schedules.lookup import find_space, make_kernel
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.scheduling.tir_writing import stretch
from tvm_sparse.target.resolve import resolve_target

AVX2 = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}


@pytest.fixture(scope="module")
def target() -> Target:
    """This machine's CPU."""
    return resolve_target("llvm")


def test_stretch_keeps_every_weight_at_its_place() -> None:
    """Values, offsets and row pointers hold exactly the non-zeros, filter by filter, in the order of (c, r, s)."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 2, 3, 3)).astype(np.float32) * (rng.random((6, 2, 3, 3)) < 0.4)
    weight[2] = 0
    places = np.arange(3 * 2 * 9).reshape(6, 3, 3)  # three groups of two channels
    values, offsets, rows = stretch(weight, places)
    assert (values.dtype, offsets.dtype, rows.dtype) == (np.float32, np.int32, np.int32)
    rebuilt = np.zeros((6, 6, 3, 3), np.float32)
    for k in range(6):
        for e in range(rows[k], rows[k + 1]):
            rebuilt[k].reshape(-1)[offsets[e]] = values[e]
    for k in range(6):
        first = k // 2 * 2
        np.testing.assert_array_equal(rebuilt[k, first : first + 2], weight[k])
        assert np.count_nonzero(rebuilt[k]) == np.count_nonzero(weight[k])


def test_stretch_of_no_weights_is_not_empty() -> None:
    """TVM buffers have at least one element, so the arrays of an empty weight have one that no row points to."""
    values, offsets, rows = stretch(np.zeros((4, 2, 1, 1), np.float32), np.arange(2).reshape(2, 1, 1))
    assert values.shape == offsets.shape == (1,)
    assert not rows.any()


@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_csr_cpu_matches_the_reference(count: int) -> None:
    """Any convolution, pattern, layout and decisions: integers exactly, others within the bound."""

    @settings(max_examples=count, derandomize=True, database=None)
    @given(seed=st.integers(0, 2**20))
    def check(seed: int) -> None:
        choose = random.Random(seed).choice
        case, cpu = random_case(choose), resolve_target("llvm")
        chosen = choose(csr_cpu.spaces(case.spec, SparsityPattern.of(case.weight), cpu))
        kernel = random_kernel(chosen, case.weight, choose)
        assert case.worst(kernel, cpu) <= 1, chosen.name

    check()


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_csr_cpu_with_all_or_no_weights(target: Target, density: float) -> None:
    """An empty weight leaves the epilogue; a dense one is computed too."""
    spec = ConvSpec(2, 4, 9, 7, 6, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)
    weight = np.full(spec.weight_shape, density, np.float32)
    case = Case(spec, weight, 3, integers=True)
    assert case.worst(make_kernel("csr_cpu", spec, weight, target), target) == 0


def test_one_kernel_serves_every_weight_with_as_many_non_zeros(target: Target) -> None:
    """The code holds no weight: the arrays of another weight, of other rows, give that weight's result."""
    spec = ConvSpec(1, 3, 8, 8, 5, 3, 3, padding=(1, 1, 1, 1))
    rng = np.random.default_rng(1)
    weights = np.zeros((2, *spec.weight_shape), np.float32)
    for weight in weights:
        weight.reshape(-1)[rng.choice(weight.size, 20, replace=False)] = rng.integers(1, 5, 20)
    first, second = (make_kernel("csr_cpu", spec, weight, target) for weight in weights)
    arguments = reference.random_arguments(spec, 0, integers=True)
    y = run(Kernel(first.func, second.constants), spec, arguments, target)
    np.testing.assert_array_equal(y, reference.conv2d(spec, arguments["x"], weights[1]))


@pytest.mark.parametrize("variant", ["lines2x8", "lines7x1000000000", "rows7x8-tile1x7-channels16", "lines7"])
def test_what_no_tile_can_be_is_refused_in_a_sentence(variant: str) -> None:
    """Rows that do not divide the map, a width that none has, tiles of another schedule, and what is no variant."""
    spec = ConvSpec(1, 32, 7, 7, 32, 3, 3, padding=(1, 1, 1, 1))
    pattern = SparsityPattern.of(random_weight(spec, 0.2, "unstructured", 0, False))
    with pytest.raises(UsageError, match="it has no variant"):
        find_space(f"csr_cpu:{variant}", spec, pattern, resolve_target(AVX2))


def test_buffers_beyond_32_bit_indices_are_refused(target: Target) -> None:
    """The schedule says which buffer is too long instead of computing wrong addresses."""
    spec = ConvSpec(2**28, 1, 1, 1, 1, 1, 1)
    pattern = SparsityPattern.of(np.ones(spec.weight_shape, np.float32))
    assert "32-bit" in csr_cpu.FAMILY.can_serve(spec, pattern, target)
