"""Kernels that write the largest of each 2x2 outputs, emulated, against the float64 reference."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest
from cuda_emulator import build_source, run_emulated
from parameters import sampled
from random_convolutions import Case, random_kernel, random_pooled_case, random_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import FLOAT16
from tvm_sparse.conv.pooled import pooled_shape
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules.lookup import family_of, find_space, make_kernel, schedule_names, spaces_of
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import FoldedTileSpace
from tvm_sparse.scheduling.kernel import apply_decisions

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
LAYER = ConvSpec(2, 6, 32, 32, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
POOLED_32 = "pooled_cuda:multistage-32x16-pixels1"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


@needs_compiler
@pytest.mark.parametrize(
    ("changes", "columns", "across"),
    [
        ({"bias": False, "relu": False}, 16, ""),
        pytest.param({"groups": 2}, 16, "", marks=pytest.mark.exhaustive),
        ({"w": 96, "h": 6, "r": 5, "padding": (2, 1, 2, 1)}, 48, "-across"),
        pytest.param({}, 16, "", marks=pytest.mark.exhaustive),
        pytest.param({"relu_max": 1.0, "k": 12}, 16, "-across", marks=pytest.mark.exhaustive),
        pytest.param({}, 32, "", marks=pytest.mark.exhaustive),
    ],
)
def test_folded_convolutions(changes: dict, columns: int, across: str) -> None:
    """Any epilogue, with default decisions and with many rows and channels of a tile."""
    spec = replace(LAYER, **changes)
    case = Case(spec, random_weight(spec, 0.2, "unstructured", 1, integers=False), 1, False, pools=True)
    name = f"pooled_cuda:multistage-{spec.out_h}x{columns}-pixels1{across}"
    space = find_space(name, spec, SparsityPattern.of(case.weight), TARGET)
    assert isinstance(space, FoldedTileSpace) and space.name == name
    for number, start in enumerate(space.starts()[:2]):
        rows = space.candidates["rows"][-1] if number else start["rows"]
        kernel = make_kernel(name, spec, case.weight, TARGET, {**start, "rows": rows})
        y = run_emulated(case, kernel, TARGET, pooled_shape(spec))
        arguments = reference.random_arguments(spec, case.seed)
        assert case.error(arguments, y) <= 1


@needs_compiler
@pytest.mark.parametrize("seed", sampled(range(6), (1, 2, 4)))
def test_random_convolutions(seed: int) -> None:
    """Any padding, dilation and zeros, with default and with random decisions."""
    choose = random.Random(seed).choice
    case = random_pooled_case(choose)
    spaces, reasons = spaces_of(case.spec, SparsityPattern.of(case.weight), TARGET, ["pooled_cuda"])
    if not spaces:
        assert "no tile" in reasons["pooled_cuda"]
        return
    space = choose(spaces)
    kernel = random_kernel(space, case.weight, choose) if seed % 4 else apply_decisions(space, case.weight)
    y = run_emulated(case, kernel, TARGET, pooled_shape(case.spec))
    assert case.error(reference.random_arguments(case.spec, case.seed, case.integers), y) <= 1


def test_a_window_with_a_number_that_is_none_has_none() -> None:
    """Which a plain maximum would lose."""
    weight = random_weight(LAYER, 0.1, "unstructured", 1, integers=False)
    source = build_source(make_kernel(POOLED_32, LAYER, weight, TARGET).func, TARGET)[0]
    assert source.count("own_1 != own_1") and source.count("__shfl_xor_sync") == 3 * LAYER.k // 4


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("pooled_cuda", {"h": 31}),
        ("pooled_cuda", {"residual": True}),
        ("pooled_cuda", {"dtype": FLOAT16}),
        ("pooled_cuda", {"w": 24}),
        ("pooled_cuda", {"k": 6}),
        (POOLED_32, {"h": 30}),
        (POOLED_32.replace("x16-", "x24-"), {"w": 48}),
        (POOLED_32.replace("pixels1", "pixels2"), {}),
        (POOLED_32.replace("multistage-32", "multistage-34"), {}),
        (POOLED_32.replace("x16-", "x0-"), {}),
    ],
)
def test_what_does_not_pool_is_refused(name: str, changes: dict) -> None:
    """Odd maps, residuals, half precision, and tiles of which a warp is no two whole rows."""
    spec = replace(LAYER, **changes)
    weight = random_weight(spec, 0.1, "unstructured", 1, integers=False)
    with pytest.raises(UsageError, match="does not serve"):
        find_space(name, spec, SparsityPattern.of(weight), TARGET)


def test_it_is_searched_where_it_is_named() -> None:
    """As no other layer than one with a pool can use what it makes."""
    pattern = SparsityPattern.of(random_weight(LAYER, 0.1, "unstructured", 1, integers=False))
    found, reasons = spaces_of(LAYER, pattern, TARGET)
    assert not any(
        family_of(name).computes_pool for name in [*(each.name for each in found), *reasons, *schedule_names(TARGET)]
    )
    assert [each.name for each in spaces_of(LAYER, pattern, TARGET, ["pooled_cuda"])[0]] == [
        "pooled_cuda:multistage-32x32-pixels1",
        "pooled_cuda:multistage-32x16-pixels1-across",
    ]
    assert family_of(POOLED_32).is_folded and family_of(POOLED_32).is_compiled
