"""Kernels on tensor cores for filters that share their zeros, emulated, against the float64 reference."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_convolutions import Case, random_slice_case
from tensor_emulator import run
from tvm.target import Target

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.structure import Structure
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules import find_space, make_kernel, slice_cuda, spaces_of
from tvm_sparse.scheduling.cuda.position_geometry import Geometry
from tvm_sparse.scheduling.cuda.position_packing import packed, without_conflicts
from tvm_sparse.scheduling.cuda.position_space import PositionSpace
from tvm_sparse.scheduling.cuda.position_tiling import LIBRARIES, N_TILES, PositionTiling, kernel_name
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.schedule_names import arithmetic_of
from tvm_sparse.scheduling.space import NotApplicable

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
LAYER = ConvSpec(2, 16, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where emulated kernels are compiled."""
    return tmp_path_factory.mktemp("emulated")


def check(case: Case, space: PositionSpace, tiling: PositionTiling, folder: Path) -> None:
    """Compare a tiling of `space` with the reference."""
    decisions = {name: getattr(tiling, name) for name in space.choices}
    (weights,) = space.packed(case.weight, decisions)
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    error = case.error(arguments, run(tiling, weights, arguments, folder), arithmetic_of(space.name))
    assert error <= 1, f"{error}: {space.name}, {tiling}, {case!r}"


def test_random_convolutions_match_the_reference(folder: Path) -> None:
    """Tilings at random: several chunks, rings of two and three buffers, positions divided among warps, all kernels."""
    met: set[str] = set()
    for seed in range(160):
        rng = random.Random(seed)
        case = random_slice_case(rng.choice)
        for space in spaces_of(case.spec, SparsityPattern.of(case.weight, case.spec.groups), TARGET, ["slice_cuda"])[0]:
            assert isinstance(space, PositionSpace)
            stages = rng.choice(sorted({each.stages for _, each in space.ranked}))
            tiling = rng.choice([each for _, each in space.ranked if each.stages == stages])
            check(case, space, tiling, folder)
            met |= {tiling.kernel, f"{stages} stages", f"{tiling.k_warps} for positions", case.spec.dtype}
            met |= {"images"} if tiling.images > 1 else set()
    every = {kernel_name(m, n) for m, some in N_TILES.items() for n in some}
    others = {"1 stages", "2 stages", "3 stages", "1 for positions", "2 for positions", "images", FLOAT32, FLOAT16}
    assert met >= others and len(every & met) >= 12, every - met
