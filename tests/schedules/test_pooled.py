"""Kernels that write the largest of each 2x2 outputs, emulated, against the float64 reference."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import build_source, run_emulated
from pair_emulator import KERNELS, run
from random_convolutions import Case, random_pair_case, random_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import FLOAT16
from tvm_sparse.conv.pooled import pooled_shape
from tvm_sparse.conv.reference import CORRECTED_TF32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import find_space, make_kernel
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import FoldedTileSpace
from tvm_sparse.scheduling.cuda.pairs.space import PairSpace
from tvm_sparse.scheduling.schedule_names import arithmetic_of, is_compiled, precision_of

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
LAYER = ConvSpec(2, 6, 32, 32, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
FOLDED = "folded_cuda:multistage-32x16-pixels1-pool"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where emulated kernels are compiled."""
    return tmp_path_factory.mktemp("emulated")


def worst(case: Case, arguments: dict[str, np.ndarray], y: np.ndarray, name: str) -> float:
    """The largest error of pooled outputs as a fraction of its bound."""
    expected = reference.reference(case.spec, arguments["x"], case.weight, arguments.get("bias"))
    return expected.within(arithmetic_of(name), case.weight).pooled().worst(y)


def pair_case(seed: int) -> tuple[Case, random.Random]:
    """One whose outputs may be pooled."""
    for attempt in range(1000):
        rng = random.Random(f"{seed} {attempt} pooled")
        case = random_pair_case(rng.choice)
        spec = replace(case.spec, residual=False)
        if spec.out_h % 2 == spec.out_w % 2 == 0:
            return replace(case, spec=spec), rng
    raise AssertionError("no case")


@needs_compiler
def test_random_convolutions_on_sparse_tensor_cores(folder: Path) -> None:
    """All kernels, tiles that are no whole images, filters that fill no tile, and tiles that blocks share."""
    met: set[object] = set()
    for seed in range(40):
        case, rng = pair_case(seed)
        space = find_space("pair_cuda:pool", case.spec, SparsityPattern.of(case.weight, case.spec.groups), TARGET)
        assert isinstance(space, PairSpace)
        tiling = rng.choice(space.ranked)[1]
        (weights,) = space.packed(case.weight, {name: getattr(tiling, name) for name in space.choices})
        arguments = reference.random_arguments(case.spec, case.seed, case.integers)
        error = worst(case, arguments, run(tiling, weights, arguments, folder), space.name)
        assert error <= 1, f"{error}: {tiling}, {case!r}"
        met |= {(tiling.m_tiles, tiling.pixels), "parts" if tiling.parts > 1 else "whole"}
        met |= {"filled tile"} if tiling.k_tiles * tiling.filters > case.spec.k else set()
        met |= {"rest"} if case.spec.pixels % tiling.pixels else set()
    assert met >= {*KERNELS, "parts", "whole", "filled tile", "rest"}


@needs_compiler
@pytest.mark.parametrize(
    ("changes", "columns", "across"),
    [
        ({}, 16, ""),
        ({"bias": False, "relu": False}, 16, ""),
        ({"relu_max": 1.0, "k": 12}, 16, "-across"),
        ({"groups": 2}, 16, ""),
        ({}, 32, ""),
        ({"w": 96, "h": 6, "r": 5, "padding": (2, 1, 2, 1)}, 48, "-across"),
    ],
)
def test_folded_convolutions(changes: dict, columns: int, across: str, tmp_path: Path) -> None:
    """Any epilogue, with default decisions and with many rows and channels of a tile."""
    spec = replace(LAYER, **changes)
    case = Case(spec, random_weight(spec, 0.2, "unstructured", 1, integers=False), 1, False)
    name = f"folded_cuda:multistage-{spec.out_h}x{columns}-pixels1{across}-pool"
    space = find_space(name, spec, SparsityPattern.of(case.weight), TARGET)
    assert isinstance(space, FoldedTileSpace) and space.name == name
    for number, start in enumerate(space.starts()[:2]):
        folder = tmp_path / str(number)
        folder.mkdir()
        rows = space.candidates["rows"][-1] if number else start["rows"]
        kernel = make_kernel(name, spec, case.weight, TARGET, {**start, "rows": rows})
        y = run_emulated(case, kernel, TARGET, folder, pooled_shape(spec))
        arguments = reference.random_arguments(spec, case.seed)
        assert worst(case, arguments, y, name) <= 1


@needs_compiler
def test_a_window_with_a_number_that_is_none_has_none(folder: Path, tmp_path: Path) -> None:
    """Which a plain maximum would lose."""
    spec = replace(LAYER, k=96)
    case = Case(spec, random_weight(spec, 0.1, "unstructured", 1, integers=False), 1, False)
    arguments = reference.random_arguments(spec, case.seed)
    arguments["x"][0, :, 9, 9] = np.nan
    space = find_space("pair_cuda:pool", spec, SparsityPattern.of(case.weight), TARGET)
    assert isinstance(space, PairSpace)
    tiling = space.ranked[0][1]
    found = run(tiling, space.packed_for(case.weight, tiling)[0], arguments, folder)
    reads = reference.conv2d(spec, np.isnan(arguments["x"]), case.weight != 0)
    expected = reads.reshape(2, 96, 16, 2, 16, 2).any(axis=(3, 5))
    assert expected.any() and np.isnan(found[expected]).all() and not np.isnan(found).all()
    source = build_source(make_kernel(FOLDED, spec, case.weight, TARGET).func, TARGET)[0]
    assert "own_1 != own_1" in source


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("pair_cuda:pool", {"k": 128, "h": 31}),
        ("pair_cuda:pool", {"k": 128, "residual": True}),
        ("pair_cuda:pool", {"k": 8}),
        (FOLDED, {"dtype": FLOAT16}),
        (FOLDED, {"w": 24}),
        (FOLDED, {"residual": True}),
        (FOLDED, {"k": 6}),
        (FOLDED, {"h": 30}),
        (FOLDED.replace("x16-", "x24-"), {"w": 48}),
        (FOLDED.replace("pixels1", "pixels2"), {}),
        (FOLDED.replace("multistage-32", "multistage-34"), {}),
    ],
)
def test_what_does_not_pool_is_refused(name: str, changes: dict) -> None:
    """Odd maps, residuals, half precision, and tiles of which a warp is no two whole rows."""
    spec = replace(LAYER, **changes)
    weight = random_weight(spec, 0.1, "unstructured", 1, integers=False)
    with pytest.raises(UsageError, match=r"does not serve|has no variant"):
        find_space(name, spec, SparsityPattern.of(weight), TARGET)


def test_names_say_how_they_compute() -> None:
    """As those of the kernels that do not pool."""
    assert arithmetic_of("pair_cuda:pool") == CORRECTED_TF32
    assert precision_of("pair_cuda:pool", "float32") == "TF32+BF16"
    assert is_compiled(FOLDED) and not is_compiled("pair_cuda:pool")
