"""Kernels of vectors of filters on CPUs: right for every convolution, and as few loads as promised."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_convolutions import MAX_WEIGHTS, Case, random_kernel, random_spec, random_weight, run, vector_weight

from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import csr_cpu, vector_cpu
from tvm_sparse.schedules.lookup import find_space, make_kernel, spaces_of
from tvm_sparse.scheduling.cpu.line_space import LineSpace
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","opt-level":0,"num-cores":2}')
LENGTHS = (2, 4, 8, 16)
WIDE = ConvSpec(1, 160, 10, 10, 16, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)


@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_matches_the_reference(count: int) -> None:
    """Any convolution, vectors of any length, any space and decisions: integers exactly, others within the bound."""
    checked = set()

    @settings(max_examples=count, derandomize=True, suppress_health_check=HealthCheck)
    @given(st.integers(0, 2**20))
    def check(seed: int) -> None:
        choose = random.Random(seed).choice
        spec, length = random_spec(choose), choose(LENGTHS)
        spec = replace(spec, k=spec.k * length)
        channels = max(1, min(spec.c // spec.groups, 4 * MAX_WEIGHTS // (spec.k * spec.r * spec.s)))
        spec = replace(spec, c=channels * spec.groups)
        integers = choose((True, False))
        case = Case(spec, vector_weight(spec, length, choose((0.1, 0.3, 0.8)), seed, integers), seed, integers)
        pattern = SparsityPattern.of(case.weight)
        if not pattern.structure.startswith("vector"):
            return
        space = choose(vector_cpu.spaces(spec, pattern, TARGET))
        checked.add(space.shared)
        kernel = random_kernel(space, case.weight, choose)
        assert case.worst(kernel, TARGET) <= 1, f"{space.name}, {case!r}"

    check()
    assert checked == {*vector_cpu.FILTERS}


@pytest.mark.parametrize("integers", [True, False])
def test_channels_in_steps_are_added_up(integers: bool) -> None:
    """Of a group with more channels than the cache holds a step at a time, with epilogue; some steps are empty."""
    weight = vector_weight(WIDE, 8, 0.1, 3, integers)
    weight[:, 64:96] = 0
    case = Case(WIDE, weight, 5, integers)
    spaces = vector_cpu.spaces(WIDE, SparsityPattern.of(weight), TARGET)
    for space, (channels, filters) in product(spaces[::2], [(160, 16), (32, 16), (32, 8), (80, 8)]):
        decisions = {"channels": channels, "filters": filters}
        assert case.worst(make_kernel(space.name, WIDE, weight, TARGET, decisions), TARGET) <= 1


@pytest.mark.parametrize("length", LENGTHS)
def test_agrees_with_unstructured_kernels_exactly(length: int) -> None:
    """The same whole numbers, folded, as compressed rows and in vectors."""
    spec = ConvSpec(2, 12, 9, 11, 32, 3, 3, padding=(1, 0, 1, 2), stride=(2, 1), bias=True, residual=True, relu=True)
    weight, arguments = (
        vector_weight(spec, length, 0.2, length, True),
        reference.random_arguments(spec, 1, integers=True),
    )
    first, *others = (
        run(make_kernel(name, spec, weight, TARGET), spec, arguments, TARGET)
        for name in ("vector_cpu", "csr_cpu", "folded_cpu")
    )
    assert first.any()
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_tiles_fit_the_registers_and_the_vectors() -> None:
    """On every vector unit; tiles divide the vectors of a pattern and the pixels of a layout."""
    spec = ConvSpec(1, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    for length in (2, 4, 6, 32):
        spec = replace(spec, k=2 * length)
        pattern = SparsityPattern.of(vector_weight(spec, length, 0.1, 0, True))
        for name in ("x86-64-v4", "x86-64-v3"):
            target = resolve_target({"kind": "llvm", "mcpu": name, "num-cores": 1})
            cpu = CpuInfo.of(target)
            spaces = vector_cpu.spaces(spec, pattern, target)
            assert spaces
            for space in spaces:
                assert isinstance(space, LineSpace)
                assert (space.shared + 1) * space.lines.held < cpu.registers
                assert length % space.shared == 0 and space.lines.vectors % space.lines.held == 0
    assert {space.shared for space in spaces if isinstance(space, LineSpace)} == {4}


def test_a_position_is_stored_once_for_its_filters() -> None:
    """As many times fewer offsets as a tile has filters, for the same values."""
    weight = vector_weight(WIDE, 8, 0.1, 0, True)
    pattern = SparsityPattern.of(weight)
    space = vector_cpu.spaces(WIDE, pattern, TARGET)[0]
    values, offsets, *_ = make_kernel(space.name, WIDE, weight, TARGET).constants
    assert isinstance(space, LineSpace) and values.size == pattern.nnz == offsets.size * space.shared
    csr_values, csr_offsets, *_ = make_kernel(csr_cpu.NAME, WIDE, weight, TARGET).constants
    assert csr_offsets.size == csr_values.size == values.size
    assert sorted(values) == sorted(csr_values)


def test_threads_share_the_filters_where_there_are_fewer_tiles() -> None:
    """The kernels of one thread and of many compute the same sums in the same order."""
    spec = ConvSpec(1, 32, 7, 7, 32, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True)
    weight, arguments = vector_weight(spec, 4, 0.2, 0, False), reference.random_arguments(spec, 0)
    outputs = []
    for cores, filters in ((1, 32), (2, 16)):
        target = resolve_target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": cores})
        # Seven rows, a row's padding also that of the next, and half of the channels at a time.
        name, decisions = "vector_cpu:rows7x8-tile4x3", {"channels": 16, "filters": filters}
        outputs.append(run(make_kernel(name, spec, weight, target, decisions), spec, arguments, target))
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(
    "variant",
    # Rows that do not divide the map, a stride that none has, no vectors, more than there are registers, filters that
    # do not share their zeros, and what is no variant.
    ["rows2x8", "rows7x1000000000", "tile4x0", "tile4x40", "tile8x1", "tile1x7", "rows7"],
)
def test_what_no_tile_can_be_is_refused_in_a_sentence(variant: str) -> None:
    """Whatever part of a variant is none."""
    spec = ConvSpec(1, 32, 7, 7, 32, 3, 3, padding=(1, 1, 1, 1))
    pattern = SparsityPattern.of(vector_weight(spec, 4, 0.2, 0, False))
    parts = ("rows7x8", "tile4x3")
    name = "-".join(variant if each[0] == variant[0] else each for each in parts)
    with pytest.raises(UsageError, match="it has no variant"):
        find_space(f"vector_cpu:{name}", spec, pattern, resolve_target({"kind": "llvm", "mcpu": "x86-64-v3"}))


def test_infinite_inputs_meet_no_zero_weight() -> None:
    """A pixel that no weight reads may be infinite or NaN."""
    spec = ConvSpec(1, 4, 8, 8, 8, 1, 1)
    weight = vector_weight(spec, 8, 1.0, 0, False)
    weight[:, 2] = 0
    x = np.random.default_rng(0).standard_normal(spec.input_shape).astype(np.float32)
    x[0, 2] = np.inf
    assert np.isfinite(run(make_kernel("vector_cpu", spec, weight, TARGET), spec, {"x": x}, TARGET)).all()


def test_other_zeros_are_refused_by_name() -> None:
    """A sentence with what was found and what it is for."""
    can_serve = vector_cpu.FAMILY.can_serve
    weight = random_weight(WIDE, 0.1, "unstructured", 0, False)
    pattern = SparsityPattern.of(weight)
    assert "the zeros are unstructured; it is for filters that share their zeros" in can_serve(WIDE, pattern, TARGET)
    assert "vector_cpu" in spaces_of(WIDE, pattern, TARGET)[1]
    long = ConvSpec(2**28, 1, 1, 1, 2, 1, 1)
    assert "32-bit" in can_serve(long, replace(pattern, structure="vector2"), TARGET)
