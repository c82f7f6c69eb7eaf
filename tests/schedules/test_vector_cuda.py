"""Kernels for weights pruned in vectors of filters on CUDA, emulated, against the float64 reference."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from data_emulator import run
from random_convolutions import Case, random_spec, random_weight, vector_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import data_cuda, vector_cuda
from tvm_sparse.schedules.lookup import find_space, make_kernel, spaces_of
from tvm_sparse.scheduling.cuda.data.space import DataSpace
from tvm_sparse.target.gpu import gpu_info

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
LAYER = ConvSpec(2, 16, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)


def check(case: Case, space: DataSpace, seed: int) -> tuple[int, str]:
    """Compare a random tiling of `space`; filters a warp and whether blocks are clusters."""
    rng = random.Random(seed)
    parts = rng.choice(sorted({each.parts > 1 for _, each in space.ranked}))
    tiling = rng.choice([each for _, each in space.ranked if (each.parts > 1) == parts])
    decisions = {name: choice.to_json(getattr(tiling, name)) for name, choice in space.choices.items()}
    (weights,) = space.packed(case.weight, decisions)
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    assert case.error(arguments, run(tiling, weights, arguments)) <= 1, f"{space.name}, {tiling}, {case!r}"
    return space.shared, "cluster" if tiling.parts > 1 else "block"


def test_random_convolutions_match_the_reference() -> None:
    """Any convolution, vectors of any length, tiling and structure of blocks."""
    met = set()
    for seed in range(40):
        choose = random.Random(seed).choice
        spec, length, integers = random_spec(choose), choose((4, 8, 16, 32)), choose((True, False))
        spec = replace(spec, k=spec.groups * length * choose((1, 2, 4)))
        case = Case(spec, vector_weight(spec, length, choose((0.1, 0.4)), seed, integers), seed, integers)
        pattern = SparsityPattern.of(case.weight, spec.groups)
        for space in spaces_of(spec, pattern, TARGET, ["vector_cuda"])[0]:
            met.add(check(case, space, seed))
    assert met == {(shared, kind) for shared in vector_cuda.SHARED for kind in ("block", "cluster")}


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, pytest.param(BFLOAT16, marks=pytest.mark.exhaustive)])
def test_grouped_convolutions_match_the_reference(dtype: str) -> None:
    """Groups of several channels, any zeros or none: warps take filters together that use other positions."""
    met = set()
    for seed in range(16 if dtype == FLOAT32 else 5):
        choose = random.Random(seed).choice
        groups, size, stride, taps = choose((2, 3)), choose((7, 9, 12)), choose((1, 2)), choose((1, 3))
        spec = ConvSpec(
            choose((1, 2)), groups * choose((2, 4, 12)), size, size, groups * choose((4, 8, 16, 24)), taps, taps,
            stride=(stride, stride), padding=(taps // 2,) * 4, groups=groups, bias=True, residual=choose((True, False)),
        )  # fmt: skip
        weight = random_weight(spec, choose((0.1, 0.5, 1.0)), "unstructured", seed, False)
        case = Case(spec, weight, seed, False).stored_in(dtype)
        for space in vector_cuda.spaces(case.spec, SparsityPattern.of(case.weight, groups), TARGET):
            met.add((bool(case.weight.all()), check(case, space, seed)[0]))
    assert met == set(product((True, False), vector_cuda.SHARED)) or dtype != FLOAT32


@pytest.mark.parametrize(("images", "blocks"), [(1, 32), (64, 2048)])
def test_blocks_of_a_grouped_convolution_share_multiprocessors(images: int, blocks: int) -> None:
    """Many ask for what they need; few for so much that each multiprocessor has as many as others."""
    spec = ConvSpec(images, 64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1), groups=8)
    space = find_space("vector_cuda:filters8", spec, SparsityPattern.of(np.ones(spec.weight_shape), 8), TARGET)
    tile = {"filters": 8, "rows": 7, "columns": 28, "parts": 1, "pixel_groups": 4, "warps": 4, "staging": "rows"}
    asked = set(re.findall(r"T\.max\(16 \* stride \+ \d+, (\d+)\)", space.written(tile).script()))
    assert asked == {str(gpu_info(TARGET).spread_bytes(blocks))}


def test_agrees_with_unstructured_kernels_exactly() -> None:
    """The same whole numbers, a filter at a time and 4, 8 and 16."""
    weight = vector_weight(LAYER, 16, 0.2, 1, True)
    pattern, arguments = SparsityPattern.of(weight), reference.random_arguments(LAYER, 2, integers=True)
    found = []
    for space in (*data_cuda.spaces(LAYER, pattern, TARGET), *vector_cuda.spaces(LAYER, pattern, TARGET)):
        _, tiling = space.ranked[0]
        (weights,) = space.packed(weight, space.starts()[0])
        found.append(run(tiling, weights, arguments))
    assert len(found) == 4 and found[0].any()
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


def test_an_infinite_input_meets_no_zero() -> None:
    """An odd number of non-zeros is filled up, and what a filled place reads is connected to the output anyway."""
    spec = ConvSpec(1, 8, 8, 8, 16, 1, 1)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[:, 3] = 1
    x = np.ones(spec.input_shape, np.float32)
    x[0, 0] = np.inf
    for space in vector_cuda.spaces(spec, SparsityPattern.of(weight), TARGET):
        (weights,) = space.packed(weight, space.starts()[0])
        assert (run(space.ranked[0][1], weights, {"x": x}) == 1).all()


def test_vectors_take_less_room_than_single_weights() -> None:
    """8 bytes a weight alone, 6, 5 and 4.5 in vectors of 4, 8 and 16, apart from where filters begin."""
    spec = ConvSpec(1, 64, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1))
    weight = vector_weight(spec, 16, 0.3, 0, True)
    pattern = SparsityPattern.of(weight)
    for space in vector_cuda.spaces(spec, pattern, TARGET):
        bytes_a_weight = {4: 6, 8: 5, 16: 4.5}[space.shared]
        decisions = {**space.starts()[0], "parts": 1}
        (weights,) = space.packed(weight, decisions)
        assert weights.nbytes == pytest.approx(bytes_a_weight * pattern.nnz, rel=0.2)


def test_one_function_serves_every_weight_of_a_shape() -> None:
    """Nothing of a weight is in the code."""
    one, other = (vector_weight(LAYER, 8, 0.2, seed, True) for seed in (1, 2))
    space = find_space("vector_cuda:filters8", LAYER, SparsityPattern.of(one), TARGET)
    kernels = [make_kernel("vector_cuda:filters8", LAYER, each, TARGET, space.starts()[0]) for each in (one, other)]
    assert kernels[0].func.script() == kernels[1].func.script()
    assert not np.array_equal(kernels[0].constants[0], kernels[1].constants[0])


def test_what_it_is_not_for_is_said() -> None:
    """Other zeros, and GPUs without clusters."""
    can_serve = vector_cuda.FAMILY.can_serve
    weight = random_weight(LAYER, 0.1, "unstructured", 0, False)
    assert "the zeros are unstructured; it is for filters that share" in can_serve(
        LAYER, SparsityPattern.of(weight), TARGET
    )
    pattern = SparsityPattern.of(vector_weight(LAYER, 8, 0.1, 0, True))
    assert "has no clusters" in can_serve(LAYER, pattern, Target({"kind": "cuda", "arch": "sm_86"}))
