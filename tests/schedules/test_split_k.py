"""Kernels whose thread blocks share the input channels: where they are offered, their source, emulated numerics."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from cuda_emulator import build_source, kernels, run_emulated
from parameters import sampled
from random_convolutions import MAX_WEIGHTS, Case, random_case, random_kernel, random_weight
from tvm import tirx
from tvm.target import Target

from tvm_sparse.codegen.cuda.cluster_reduction import cluster_reduction
from tvm_sparse.conv import reference
from tvm_sparse.conv.conv2d_npq import NpqTiles
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules import folded_cuda
from tvm_sparse.schedules.lookup import find_space, make_kernel
from tvm_sparse.scheduling.annotations import SPLIT_K, DependentLaunch, Order
from tvm_sparse.scheduling.cuda.folded.cost_model import features, time_us
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KTile, OutputTile, Pipeline, kernel_counts
from tvm_sparse.scheduling.cuda.folded.npq_tiles import channel_floats, npq_tilings
from tvm_sparse.scheduling.cuda.folded.occupancy import Fold, refused
from tvm_sparse.scheduling.cuda.folded.split_k import split_space
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.gpu import gpu_info

CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
GPU = gpu_info(CUDA)
SPEC = ConvSpec(1, 16, 14, 14, 24, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)
# The middle of ResNet-50 at batch 1.
SMALL = ConvSpec(1, 256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1))
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


def weight_of(spec: ConvSpec, density: float = 0.2) -> np.ndarray:
    """A normal weight with random zeros."""
    return random_weight(spec, density, "unstructured", 0, integers=False)


def split(spec: ConvSpec, weight: np.ndarray, parts: int) -> Space:
    """The space of `parts` parts and the first NPQ tiling."""
    folding = Fold(SparsityPattern.of(weight), GPU)
    found = split_space("folded_cuda", npq_tilings(spec, GPU)[0], parts, folding)
    assert found is not None
    return found


def verify(case: Case, kernel: Kernel) -> None:
    """Emulate a kernel and compare: integers exactly, others within the bound."""
    y = run_emulated(case, kernel, CUDA)
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    epilogue = arguments.get("bias"), arguments.get("residual")
    expected = reference.reference(case.spec, arguments["x"], case.weight, *epilogue)
    if case.integers:
        np.testing.assert_array_equal(y, expected.value)
    else:
        assert expected.worst(y) <= 1


def test_split_spaces_are_offered_where_there_are_few_thread_blocks() -> None:
    """First for a small map at batch 1; not for a large map or batch, nor where the GPU has no clusters."""
    pattern = SparsityPattern.of(weight_of(SMALL, 0.1))
    found = folded_cuda.spaces(SMALL, pattern, CUDA)
    assert found[0].variant.startswith("split")
    assert sum("split" in each.variant for each in found) == 2
    large = (replace(SMALL, n=64), ConvSpec(1, 64, 112, 112, 64, 3, 3, padding=(1, 1, 1, 1)))
    older = Target({"kind": "cuda", "arch": "sm_86"}, host={"kind": "llvm"})
    for spec, target in (*((spec, CUDA) for spec in large), (SMALL, older)):
        pattern = SparsityPattern.of(weight_of(spec, 0.1))
        assert not [each for each in folded_cuda.spaces(spec, pattern, target) if "split" in each.variant]


@pytest.mark.parametrize(("arch", "expected"), [("sm_89", False), ("sm_90", True), ("sm_90a", True), ("sm_120", True)])
def test_clusters_need_compute_capability_9(arch: str, expected: bool) -> None:
    """With and without the suffix of an architecture."""
    assert gpu_info(Target({"kind": "cuda", "arch": arch})).has_clusters == expected


def test_a_split_space_is_refused_where_it_does_not_fit() -> None:
    """Parts divide the input channels of a group and the output channels of a tile; partial sums fit."""
    folding = Fold(SparsityPattern.of(weight_of(SPEC)), GPU)
    tiles = npq_tilings(SPEC, GPU)[0]
    assert split_space("folded_cuda", tiles, 2, folding) is not None
    odd_channels, odd_filters = replace(SPEC, c=15), replace(SPEC, k=25)
    for spec in (odd_channels, odd_filters):
        assert split_space("folded_cuda", npq_tilings(spec, GPU)[0], 2, folding) is None
    # One channel is more than shared memory holds.
    small = replace(GPU, shared_bytes=4 * channel_floats(tiles) - 4)
    space = split_space("folded_cuda", tiles, 2, replace(folding, gpu=small))
    assert space is None or not space.defaults


def test_the_counts_of_a_part() -> None:
    """A part has its share of multiply-adds, copies and k-tiles, its sums take shared memory; small grids gain."""
    pattern = SparsityPattern.of(weight_of(SMALL, 0.1))
    output, k_tile = OutputTile(196, 4, 1, 1), KTile(8, 8 * 16 * 46 * 4, (8, 16, 8), 2)
    pipeline = Pipeline(4, Order.STRAIGHT, 1, DependentLaunch.AT_EXIT)
    whole = kernel_counts(SMALL, pattern, output, k_tile, pipeline)
    part = kernel_counts(SMALL, pattern, output._replace(filters=16), k_tile, pipeline, splits=4)
    assert part.blocks * part.tiles * part.splits == whole.blocks * whole.tiles
    assert part.multiply_adds == pytest.approx(whole.multiply_adds)
    assert (part.k_tiles, part.copied_bytes) == (whole.k_tiles / 4, whole.copied_bytes / 4)
    assert part.shared_bytes == whole.shared_bytes + 4 * 16 * 196
    assert time_us(part, GPU) < time_us(whole, GPU) / 1.2
    assert len(features(part, GPU)) == len(features(whole, GPU))
    assert "copies" in refused(replace(part, copies=1000), GPU)
    assert "13 addresses of a thread's copies" in refused(replace(part, addresses=13), GPU)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_split_source_is_one_kernel_with_each_non_zero_once(parts: int) -> None:
    """One launch in clusters along z; no workspace; one barrier a k-tile of each tile and part; constant places."""
    weight = weight_of(SPEC)
    each = split(SPEC, weight, parts)
    filters, channels, depth, *_ = each.defaults[0]
    source, (launch,) = build_source(apply_decisions(each, weight).func, CUDA)
    assert (launch.grid[1:], launch.cluster) == ((SPEC.k // filters, parts), parts)
    code = kernels(source)
    assert len(re.findall(r"\* (-?0x[0-9a-f.]+p[+-]\d+)f", code)) == np.count_nonzero(weight)
    assert code.count("__syncthreads()") == SPEC.k // filters * SPEC.c // channels
    # The partial sums do not lie where other threads may still read the last k-tile.
    tiles = npq_tilings(SPEC, GPU)[0]
    staged = (min(depth, SPEC.c // parts // channels) * channels - 1) * channel_floats(tiles)
    staged += tiles.input_rows * tiles.width
    assert launch.shared >= 4 * (staged + filters * tiles.pixels)
    assert (code.count("tvm_sparse_cluster_arrive();"), code.count("tvm_sparse_cluster_wait();")) == (2, 2)
    assert code.count("tvm_sparse_cluster_load(") == filters
    parameters = re.search(r"main_kernel\(([^)]*)\)", code).group(1)
    assert sorted(re.findall(r"\w+_ptr", parameters)) == ["bias_ptr", "out_ptr", "residual_ptr", "x_ptr"]


def split_case(choose: random.Random) -> tuple[Case, Space]:
    """A random convolution with a random NPQ tiling and number of parts that serve it."""
    while True:
        case, parts = random_case(choose.choice), choose.choice((2, 4, 8))
        groups, r, s = case.spec.groups, case.spec.r, case.spec.s
        channels, filters = parts * choose.choice((1, 2, 3)), parts * choose.choice((1, 2, 3))
        if groups * channels * filters * r * s > 2 * MAX_WEIGHTS:
            continue
        spec = replace(case.spec, c=channels * groups, k=filters * groups)
        weight = random_weight(spec, choose.choice((0.1, 0.4, 1.0)), "unstructured", case.seed, case.integers)
        sizes = sorted({min(spec.pixels, 512), -(-spec.pixels // 2), min(spec.pixels, 37)})
        tiles = NpqTiles(spec, choose.choice(sizes))
        found = split_space("folded_cuda", tiles, parts, Fold(SparsityPattern.of(weight), GPU))
        if found is not None and found.defaults:
            return replace(case, spec=spec, weight=weight), found


@needs_compiler
@pytest.mark.parametrize("seed", sampled(range(12), range(4)))
def test_emulated_split_kernels_match_the_reference(seed: int) -> None:
    """Any stride, padding, dilation, groups, size, epilogue, number of parts, size of tiles and decisions."""
    choose = random.Random(f"{seed} split")
    case, found = split_case(choose)
    verify(case, random_kernel(found, case.weight, choose.choice))


@needs_compiler
def test_the_default_of_a_small_map_is_a_split_kernel_that_is_right() -> None:
    """What `make_kernel` makes where nothing was tuned, here with a residual and 2 images."""
    spec = ConvSpec(2, 128, 7, 7, 64, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)
    weight = weight_of(spec, 0.02)
    assert "split" in find_space("folded_cuda", spec, SparsityPattern.of(weight), CUDA).variant
    verify(Case(spec, weight, 3, integers=False), make_kernel("folded_cuda", spec, weight, CUDA))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
def test_nvcc_compiles_a_split_kernel(tmp_path: Path) -> None:
    """Without spilled registers."""
    weight = weight_of(SPEC)
    each = split(SPEC, weight, 4)
    source, _ = build_source(apply_decisions(each, weight).func, CUDA)
    (tmp_path / "kernel.cu").write_text(source)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-O3", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(\d+) bytes spill", done.stderr)) == {"0"}


def test_a_function_that_is_not_two_kernels_is_not_joined() -> None:
    """The error names the function; one without the annotation is left alone."""
    loop_var, buffer = tirx.Var("i", "int32"), tirx.decl_buffer((4,), "float32", "y")
    store = tirx.BufferStore(buffer, tirx.const(0.0, "float32"), [loop_var])
    for marks in ({}, {SPLIT_K: 2}):
        loop = tirx.For(loop_var, 0, 4, tirx.ForKind.SERIAL, store, annotations=marks)
        func = tirx.PrimFunc([buffer], loop).with_attr("global_symbol", "convolution")
        module = tvm.IRModule({"main": func})
        if marks:
            with pytest.raises(BuildError, match="convolution: split-K kernels cannot become a cluster"):
                cluster_reduction(module)
        else:
            assert cluster_reduction(module)["main"].same_as(func)
