"""CUDA schedules: the generated source, its numerics emulated on the CPU, and, where there is one, on the GPU."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernel_jobs
import numpy as np
import pytest
import tvm
from check_kernels import summary
from cuda_emulator import build_source, emulate, kernels, run_emulated
from parameters import sampled
from random_convolutions import Case, random_case, random_kernel
from tvm.support import nvcc as tvm_nvcc
from tvm.target import Target

from tvm_sparse.codegen.cuda import nvcc
from tvm_sparse.codegen.cuda.nvcc import cuda_compiler
from tvm_sparse.conv import reference
from tvm_sparse.conv.conv2d_npq import NpqTiles
from tvm_sparse.conv.conv2d_tiles import SpatialTiles
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.schedules import dense_cuda, folded_cuda
from tvm_sparse.schedules.lookup import find_space, make_kernel, spaces_of
from tvm_sparse.scheduling.annotations import DependentLaunch
from tvm_sparse.scheduling.cuda.folded import occupancy
from tvm_sparse.scheduling.cuda.folded.bank_conflicts import row_stride
from tvm_sparse.scheduling.cuda.folded.npq_tiles import channel_floats, npq_tilings
from tvm_sparse.scheduling.cuda.folded.spatial_tiles import FoldedTileSpace, TileSpace
from tvm_sparse.scheduling.cuda.folded.thread_layout import spread
from tvm_sparse.scheduling.cuda.folded.tile_plan import MAX_SHARED, MAX_THREADS, Structure, layouts, plan, torn
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.gpu import gpu_info

CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
GPU = gpu_info(CUDA)
SPEC = ConvSpec(2, 16, 14, 14, 24, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
SCHEDULES = ("folded_cuda", "csr_cuda", "dense_cuda")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")


def sparse_weight(spec: ConvSpec, density: float = 0.2) -> np.ndarray:
    """A normal weight with random zeros."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(spec.weight_shape) * (rng.random(spec.weight_shape) < density)
    return weight.astype(np.float32)


def source_of(name: str, spec: ConvSpec, weight: np.ndarray) -> str:
    """The kernels of a schedule with its default decisions."""
    return kernels(build_source(make_kernel(name, spec, weight, CUDA).func, CUDA)[0])


def variants() -> list[str]:
    """Every variant of the folded schedule for `SPEC`."""
    return [each.name for each in folded_cuda.spaces(SPEC, SparsityPattern.of(sparse_weight(SPEC)), CUDA)]


@pytest.mark.parametrize("name", variants())
def test_folded_source_is_one_multiply_add_a_non_zero(name: str) -> None:
    """Every non-zero appears once a pixel, as an immediate; no zero, no weight argument and no index array is left."""
    weight = sparse_weight(SPEC)
    source = source_of(name, SPEC, weight)
    pixels = math.prod(map(int, name.rpartition("pixels")[2].split("x"))) if "pixels" in name else 1
    immediates = re.findall(r"\* (-?0x[0-9a-f.]+p[+-]\d+)f", source)
    assert len(immediates) == np.count_nonzero(weight) * pixels
    found = np.array([float.fromhex(each) for each in immediates], np.float32)
    np.testing.assert_array_equal(np.unique(found), np.unique(weight[weight != 0]))
    parameters = re.search(r"main_kernel\(([^)]*)\)", source).group(1)
    assert sorted(re.findall(r"\w+_ptr", parameters)) == ["bias_ptr", "out_ptr", "x_ptr"]
    assert "int*" not in parameters


def test_a_variant_is_found_by_its_name_whether_it_is_offered_or_not() -> None:
    """Logs name variants that no search is offered any more."""
    weight = sparse_weight(SPEC)
    pattern = SparsityPattern.of(weight)
    for each in folded_cuda.spaces(SPEC, pattern, CUDA):
        found = folded_cuda.named(SPEC, pattern, CUDA, each.variant)
        assert found is not None and (found.name, found.estimate_us) == (each.name, each.estimate_us)
        tvm.ir.assert_structural_equal(found.func, each.func)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
@pytest.mark.parametrize(
    "name",
    sampled(
        [
            "npq93",
            "split4-npq100",
            "multistage-17x14-pixels1",
            "multistage-16x8-pixels2-across",
            "multistage-14x8-pixels1x2",
            "multistage-14x8-pixels2x4-across",
        ],
        ["npq93", "multistage-17x14-pixels1", "multistage-16x8-pixels2-across"],
    ),
)
def test_a_variant_that_no_search_is_offered_is_right(name: str) -> None:
    """Whatever a log names and `named` accepts computes the convolution."""
    assert f"folded_cuda:{name}" not in variants()
    spec = replace(SPEC, bias=False)
    case = Case(spec, np.where(sparse_weight(spec), 3, 0).astype(np.float32), 5, integers=True)
    x = reference.random_arguments(spec, case.seed, case.integers)["x"]
    y = run_emulated(case, make_kernel(f"folded_cuda:{name}", spec, case.weight, CUDA), CUDA)
    np.testing.assert_array_equal(y, reference.reference(spec, x, case.weight).value)


@pytest.mark.parametrize(
    "name",
    [
        "npq0",
        "npq2000",
        "split3-npq64",
        "multistage-13x14-pixels1",
        "multistage-14x16-pixels1",
        "multistage-15x14-pixels2",
        "multistage-14x14-pixels1x4",
        "npq",
        "warp-rows64",
    ],
)
def test_what_cuts_no_output_has_no_space(name: str) -> None:
    """A name from a damaged log is refused."""
    with pytest.raises(UsageError, match=f"it has no variant '{name}'"):
        find_space(f"folded_cuda:{name}", SPEC, SparsityPattern.of(sparse_weight(SPEC)), CUDA)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("warp-rows64", ConvSpec(2, 4, 6, 48, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)),
        ("warp-rows128", ConvSpec(4, 8, 8, 40, 8, 3, 3, padding=(2, 1, 2, 3), dilation=(2, 2), groups=2)),
        ("warp-rows32", ConvSpec(8, 6, 2, 36, 4, 1, 1)),
    ],
)
def test_strips_go_over_the_ends_of_images(name: str, spec: ConvSpec) -> None:
    """Blocks of 32 columns where 32 does not divide the width; a search is offered one length of them."""
    case = Case(spec, np.where(sparse_weight(spec), 3, 0).astype(np.float32), 5, integers=True)
    y = run_emulated(case, make_kernel(f"folded_cuda:{name}", spec, case.weight, CUDA), CUDA)
    arguments = reference.random_arguments(spec, case.seed, case.integers)
    np.testing.assert_array_equal(y, reference.reference(spec, weight=case.weight, **arguments).value)
    large = ConvSpec(64, 8, 112, 112, 8, 3, 3, padding=(1, 1, 1, 1))
    offered = folded_cuda.spaces(large, SparsityPattern.of(sparse_weight(large)), CUDA)
    assert [each.variant for each in offered if "warp-rows" in each.variant] == ["warp-rows256"]


def test_many_runs_are_whole_warps() -> None:
    """Memory is written 32 bytes at a time: neither a warp's outputs nor a tile's begin or end amid them."""
    large = ConvSpec(64, 64, 112, 112, 128, 3, 3, padding=(1, 1, 1, 1))
    assert all(tiles.pixels % 32 == 0 for tiles in npq_tilings(large, GPU)) and len(npq_tilings(large, GPU)) > 3
    assert {tiles.columns for tiles in layouts(large, GPU, 1)[:3]} == {16, 56, 112}
    structures = [Structure(SpatialTiles(large, 112, columns), 1, "multistage") for columns in (28, 56, 112)]
    assert [torn(each, GPU) for each in structures] == [True, False, False]
    small, few = replace(large, n=1), replace(large, c=4, k=16)
    assert not torn(Structure(SpatialTiles(small, 112, 28), 1, "multistage"), GPU)
    offered = folded_cuda.spaces(few, SparsityPattern.of(sparse_weight(few)), CUDA)
    assert sum("-across" in each.variant for each in offered) == 1


def test_runs_that_divide_images_but_no_rows_stage_their_rows_alone() -> None:
    """Also where TVM resolves the divisions that say which row of its run a pixel reads."""
    spec = ConvSpec(2, 4, 12, 12, 8, 3, 3, padding=(1, 1, 1, 1))
    weight = sparse_weight(spec)
    each = find_space("folded_cuda:npq16", spec, SparsityPattern.of(weight), CUDA)
    _, channels, depth, _, _, launch_at = each.defaults[0]
    buffers = min(depth, spec.c // channels)
    (launch,) = build_source(apply_decisions(each, weight).func, CUDA)[1]
    ample = GPU.spread_bytes(math.prod(launch.grid)) if launch_at == DependentLaunch.AT_ONCE else 0
    assert launch.shared == max(ample, 4 * buffers * channels * channel_floats(NpqTiles(spec, 16)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
@pytest.mark.parametrize(
    ("name", "values", "grid"),
    sampled(
        [
            ("npq32", (4, 2, 4, "straight", 1, "at_once"), (392, 2, 1)),
            ("npq64", (8, 2, 4, "straight", 2, "at_once"), (196, 1, 1)),
            ("npq32", (4, 2, 3, "straight", 1, "last_k_tile"), (392, 2, 1)),
            ("multistage-14x14-pixels1", (4, 2, 1, 2, 4, "straight", 1, "at_once"), (448, 2, 1)),
            ("npq32", (4, 2, 3, "rotated", 1, "last_k_tile"), (392, 2, 1)),
            ("npq64", (8, 2, 3, "rotated", 2, "last_k_tile"), (196, 1, 1)),
        ],
        [
            ("npq64", (8, 2, 4, "straight", 2, "at_once"), (196, 1, 1)),
            ("multistage-14x14-pixels1", (4, 2, 1, 2, 4, "straight", 1, "at_once"), (448, 2, 1)),
            ("npq32", (4, 2, 3, "rotated", 1, "last_k_tile"), (392, 2, 1)),
        ],
    ),
)
def test_many_blocks(name: str, values: tuple, grid: tuple) -> None:
    """More than there are multiprocessors copy amid their k-tiles."""
    spec = ConvSpec(64, 8, 14, 14, 8, 3, 3, padding=(1, 1, 1, 1))
    case = Case(spec, np.where(sparse_weight(spec), 3, 0).astype(np.float32), 5, integers=True)
    each = find_space(f"folded_cuda:{name}", spec, SparsityPattern.of(case.weight), CUDA)
    kernel = apply_decisions(each, case.weight, dict(zip(each.choices, values, strict=True)))
    assert build_source(kernel.func, CUDA)[1][0].grid == grid
    x = reference.random_arguments(spec, case.seed, case.integers)["x"]
    y = run_emulated(case, kernel, CUDA)
    np.testing.assert_array_equal(y, reference.reference(spec, x, case.weight).value)


def test_a_pipeline_has_one_barrier_and_one_group_of_copies_a_k_tile() -> None:
    """Copies are of 16 bytes where rows are aligned; their addresses are bound once, before the first barrier."""
    spec = ConvSpec(1, 64, 16, 16, 8, 3, 3, padding=(1, 1, 1, 1))
    weight = sparse_weight(spec, 0.5)
    each = folded_cuda.spaces(spec, SparsityPattern.of(weight), CUDA)[0]
    filters, rows, _, channels, depth, *_ = each.defaults[0]
    source = kernels(build_source(apply_decisions(each, weight).func, CUDA)[0])
    tiles, k_tiles = spec.k // filters, spec.c // channels
    assert source.count("__syncthreads()") == tiles * k_tiles
    # The first copies are the same for all tiles.
    ahead = min(depth - 1, k_tiles)
    copied = ahead + tiles * (k_tiles - ahead)
    assert len(re.findall(r"commit_group\w*\(\);", source)) == copied
    assert each.variant == "multistage-16x16-pixels1"
    # Rows of 24 floats, padding and alignment included.
    spread_out = spread((channels, rows + 2, 6), 1, rows * 16, k_tiles)
    assert source.count("tvm_sparse_cp_async_16(") == copied * spread_out.copies
    assert source.count("tvm_sparse_shared_address(") == spread_out.rounds < spread_out.copies
    assert all("%" not in k_tile for k_tile in source.split("__syncthreads()")[1:k_tiles])


def test_rotated_k_tiles_are_one_straight_line_that_is_entered_at_any() -> None:
    """Each k-tile is there once, behind a label; none is passed over one by one."""
    spec = ConvSpec(64, 64, 28, 28, 8, 3, 3, padding=(1, 1, 1, 1))
    weight = sparse_weight(spec, 0.5)
    each = next(each for each in folded_cuda.spaces(spec, SparsityPattern.of(weight), CUDA) if "npq" in each.name)
    decisions = {**each.starts()[0], "order": "rotated"}
    source = kernels(build_source(apply_decisions(each, weight, decisions).func, CUDA)[0])
    filters, channels = decisions["filters"], decisions["channels"]
    tiles, k_tiles = spec.k // filters, spec.c // channels
    assert k_tiles > 3, "the test needs more k-tiles than stages"
    for macro, count in {"enter": tiles, "case": tiles * k_tiles, "leave": tiles * k_tiles, "end": tiles}.items():
        assert source.count(f"tvm_sparse_jump_table_{macro}(") == count
    assert source.count("__syncthreads()") == tiles * k_tiles


def test_the_register_cap_reaches_the_kernel() -> None:
    """The decision on blocks a multiprocessor holds is the second argument of ``__launch_bounds__``."""
    spec = ConvSpec(64, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    weight = sparse_weight(spec, 0.01)
    each = next(each for each in folded_cuda.spaces(spec, SparsityPattern.of(weight), CUDA) if "npq" in each.name)
    (*_, blocks, _), threads = each.defaults[0], each.variant.removeprefix("npq")
    bounds = f"{threads}, {blocks}" if blocks > 1 else threads
    assert f"__launch_bounds__({bounds})" in source_of(each.name, spec, weight)


def test_csr_source_holds_no_weight() -> None:
    """Values and offsets are arguments, and the code does not grow with them."""
    source = source_of("csr_cuda", SPEC, sparse_weight(SPEC))
    assert "values_ptr" in source and "offsets_ptr" in source
    assert len(source) < 10_000


def test_too_many_non_zeros_are_not_folded() -> None:
    """The reason says how many there are and how many would be folded."""
    spec = ConvSpec(1, 512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1))
    reason = folded_cuda.FAMILY.can_serve(spec, SparsityPattern.of(np.ones(spec.weight_shape, np.float32)), CUDA)
    assert reason.startswith("2359296 non-zeros ") and f"at most {folded_cuda.MAX_MULTIPLY_ADDS}" in reason


def test_dense_serves_a_kernel_that_no_block_can_stage() -> None:
    """Where one channel exceeds shared memory, the input is read in place."""
    spec = ConvSpec(1, 2, 300, 300, 2, 200, 200)
    pattern = SparsityPattern.of(sparse_weight(spec, 0.001))
    assert "direct" in dense_cuda.spaces(spec, pattern, CUDA)[0].name
    assert "shared memory" in folded_cuda.FAMILY.can_serve(spec, pattern, CUDA)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
@pytest.mark.parametrize(
    "spec",
    [
        ConvSpec(2, 4, 1, 40, 8, 1, 3, stride=(2, 1), padding=(2, 1, 2, 1)),
        ConvSpec(2, 2, 1, 16, 4, 1, 1, stride=(4, 1), padding=(2, 0, 0, 0), bias=True),
        pytest.param(
            ConvSpec(2, 16, 20, 20, 24, 1, 1, stride=(2, 2), bias=True),
            id="1x1 with stride 2",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["rows of padding only", "nothing but padding", ""],
)
def test_what_is_never_read_is_not_copied(spec: ConvSpec) -> None:
    """Every folded space is exact where staged rows are padding alone, or every second column is read."""
    weight = sparse_weight(spec, 0.3)
    weight = np.sign(weight) * np.ceil(np.abs(weight))
    arguments = reference.random_arguments(spec, 0, integers=True)
    expected = reference.reference(spec, weight=weight, **arguments)
    for each in folded_cuda.spaces(spec, SparsityPattern.of(weight), CUDA):
        kernel = apply_decisions(each, weight)
        y = np.full(spec.output_shape, np.nan, np.float32)
        names = [parameter.name for parameter in kernel.func.params]
        emulate(*build_source(kernel.func, CUDA), dict(zip(names, (*arguments.values(), y), strict=True)))
        np.testing.assert_array_equal(y, expected.value)


@pytest.mark.parametrize("seed", range(20))
def test_every_combination_of_decisions_keeps_to_the_limits(seed: int) -> None:
    """Threads and shared memory of the largest candidates together are within what a block may have.

    Of a multistage pipeline's, those that are not refused.
    """
    choose = random.Random(seed).choice
    spec = choose([*kernel_jobs.LARGE, random_case(choose).spec])
    mode = ("multistage", "async", "single")[seed % 3]
    structure = Structure(choose(layouts(spec, GPU, 2)), 2, mode, mode != "multistage" and choose((False, True)))
    decisions = plan(structure, GPU, 1000)
    if decisions is None:
        return
    if mode == "multistage":
        pattern = SparsityPattern.of(np.ones(spec.weight_shape, np.float32))
        space = FoldedTileSpace("test", decisions, occupancy.Fold(pattern, GPU))
        for kernel in map(space.counts, space.defaults):
            assert kernel.threads <= occupancy.MAX_THREADS
            assert kernel.shared_bytes * kernel.pipeline.resident <= GPU.shared_bytes
        return
    rows, images, channels = (max(c.candidates) for c in (decisions.rows, decisions.images, decisions.channels))
    assert structure.tiles.columns * rows * images <= MAX_THREADS
    assert structure.shared_bytes(rows, images, channels) <= MAX_SHARED
    for choice in (decisions.filters, decisions.rows, decisions.images, decisions.channels, decisions.blocks):
        assert choice.default in choice.candidates


def test_rows_in_shared_memory_do_not_conflict() -> None:
    """A warp that wraps to the next row of outputs reads 32 different banks."""
    spec = ConvSpec(1, 8, 56, 56, 8, 3, 3, padding=(1, 1, 1, 1))
    stride = row_stride(SpatialTiles(spec, 56, 56))
    banks = {(divmod(thread, 56)[0] * stride + divmod(thread, 56)[1]) % 32 for thread in range(32, 64)}
    assert len(banks) == 32


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", sampled(range(12), range(4)))
def test_emulated_kernels_match_the_reference(schedule: str, seed: int) -> None:
    """Any convolution, pattern, variant and decisions: integers exactly, others within the bound."""
    choose = random.Random(f"{seed} {schedule}").choice
    case = random_case(choose)
    found, _ = spaces_of(case.spec, SparsityPattern.of(case.weight), CUDA, [schedule])
    kernel = random_kernel(choose(found), case.weight, choose)
    y = run_emulated(case, kernel, CUDA)
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    expected = reference.reference(
        case.spec, arguments["x"], case.weight, arguments.get("bias"), arguments.get("residual")
    )
    if case.integers:
        np.testing.assert_array_equal(y, expected.value)
    else:
        assert expected.worst(y) <= 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")
@pytest.mark.parametrize(("fold", "mode"), [(True, "multistage"), (False, "async"), (False, "single")])
def test_tiles_that_do_not_divide_the_output(fold: bool, mode: str) -> None:
    """Rows and columns beyond the output are computed and dropped."""
    spec = ConvSpec(1, 4, 13, 227, 3, 3, 3, padding=(2, 2, 2, 2), dilation=(2, 2), relu=True)
    weight = np.where(sparse_weight(spec, 0.4), 3, 0).astype(np.float32)
    case = Case(spec, weight, 5, integers=True)
    structure = Structure(SpatialTiles(spec, 14, 60), 2, mode, stages_weights=not fold)
    decisions = plan(structure, GPU, 100)
    assert decisions is not None
    folding = occupancy.Fold(SparsityPattern.of(weight), replace(GPU, shared_bytes=MAX_SHARED))
    tiled = FoldedTileSpace("test", decisions, folding) if fold else TileSpace("test", decisions, fold=False)
    kernel = apply_decisions(tiled, weight)
    x = reference.random_arguments(spec, case.seed, case.integers)["x"]
    np.testing.assert_array_equal(run_emulated(case, kernel, CUDA), reference.reference(spec, x, weight).value)


@needs_nvcc
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nvcc_compiles_the_source(schedule: str, tmp_path: Path) -> None:
    """Without spilled registers, for the architecture of the target."""
    spec = replace(SPEC, n=64)
    source, _ = build_source(make_kernel(schedule, spec, sparse_weight(spec), CUDA).func, CUDA)
    (tmp_path / "kernel.cu").write_text(source)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-O3", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(\d+) bytes spill", done.stderr)) == {"0"}


@pytest.mark.parametrize("mode", ["nvcc", "nvrtc"])
def test_cuda_code_is_compiled_with_ieee_arithmetic(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM adds ``--use_fast_math``, which flushes denormals to zero; with our settings it does not, or undoes it."""
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", mode)
    monkeypatch.setattr(nvcc.importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    commands: list[list[str]] = []

    def refuse(command: list[str], **_: Any) -> None:
        commands.append(command)
        raise OSError("recorded")

    monkeypatch.setattr(tvm_nvcc.subprocess, "Popen", refuse)
    with CUDA, cuda_compiler(CUDA):
        if mode == "nvcc":
            with pytest.raises(OSError, match="recorded"):
                tvm_nvcc.compile_cuda("", target_format="fatbin", compiler="nvcc")
            assert "--use_fast_math" not in commands[0]
        else:
            assert "--ftz=false" in os.environ["TVM_CUDA_NVRTC_EXTRA_OPTS"].split()
    assert "TVM_CUDA_NVCC_NO_FAST_MATH" not in os.environ
    assert os.environ["TVM_CUDA_COMPILE_MODE"] == mode


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU but without nvcc and NVRTC, the error says what to install; other targets do not care."""
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
    monkeypatch.setattr(nvcc.shutil, "which", lambda _name: None)
    monkeypatch.setattr(nvcc.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(nvcc.tvm_ffi, "get_global_func", lambda *_, **__: print)
    with pytest.raises(BuildError, match=r"pip install 'tvm-sparse\[cuda\]'"), cuda_compiler(CUDA):
        pass
    with cuda_compiler(Target({"kind": "llvm"})):
        pass


@pytest.mark.gpu
def test_kernels_on_the_gpu_match_the_reference() -> None:
    """Random and larger convolutions with every schedule, as ``scripts/stress/check_kernels.py`` runs them."""
    jobs = [*kernel_jobs.random_jobs(range(100), 1, SCHEDULES), *kernel_jobs.cuda_jobs(kernel_jobs.LARGE, SCHEDULES)]
    table = summary(kernel_jobs.check(jobs, os.cpu_count() or 1))
    assert {name: row["failures"] for name, row in table.items()} == {name: [] for name in SCHEDULES}
    assert tvm.cuda(0).exist
