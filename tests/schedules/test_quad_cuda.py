"""Unstructured convolutions on sparse tensor cores, emulated, against the float64 reference."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from low_parts import check_low_parts
from parameters import random_seeds, sampled
from quad_emulator import KERNELS, quotient, run
from random_convolutions import random_quad_case, random_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import FLOAT32, HALVES
from tvm_sparse.conv.error_bounds import ONE_HALF, THREE_HALF
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules import quad_cuda
from tvm_sparse.schedules.lookup import arithmetic_of, find_space, make_kernel, precision_of
from tvm_sparse.scheduling.cuda.library.parameters import multiplier
from tvm_sparse.scheduling.cuda.quad.packing import WINDOW, packed, quads
from tvm_sparse.scheduling.cuda.quad.space import QuadSpace
from tvm_sparse.scheduling.cuda.quad.tiling import K_BLOCK, PARTS, STAGES, QuadTiling
from tvm_sparse.scheduling.family import TF32_VARIANT

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
LAYER = ConvSpec(3, 24, 9, 7, 256, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


def space_of(spec: ConvSpec, weight: np.ndarray, variant: str = "") -> QuadSpace:
    """The space of a convolution."""
    space = find_space(f"quad_cuda:{variant}".rstrip(":"), spec, SparsityPattern.of(weight, spec.groups), TARGET)
    assert isinstance(space, QuadSpace)
    return space


def k_blocks_of(weights: np.ndarray, tiling: QuadTiling) -> int:
    """Of a tile, behind its first row."""
    return len(weights) // tiling.k_tiles - 1


def met_in(seed: int, dtype: str, variant: str = "") -> set[object]:
    """What a random case has of what the test looks for; it is right."""
    rng = random.Random(f"{seed} quads")
    case = random_quad_case(rng.choice, (dtype,))
    space = space_of(case.spec, case.weight, variant)
    tiling = rng.choice(space.ranked)[1]
    (weights,) = space.packed(case.weight, {name: getattr(tiling, name) for name in space.choices})
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    error = case.error(arguments, run(tiling, weights, arguments), arithmetic_of(space.name))
    assert error <= 1, f"{error}: {tiling}, {case!r}"
    k_blocks = k_blocks_of(weights, tiling)
    met = {
        (tiling.m_tiles, tiling.pixels),
        k_blocks > STAGES[tiling.numbers],
        f"{min(case.spec.groups, 2)} groups",
        case.integers,
    }
    met |= {"many tiles"} if tiling.k_tiles > case.spec.groups else set()
    met |= {"filled tile"} if tiling.k_tiles * tiling.filters > case.spec.k else set()
    return met | {f"{tiling.parts} parts", "a part without k-blocks" if k_blocks < tiling.parts else "k_blocks"}


@needs_compiler
@random_seeds((2, 4, 9, 21, 34), 50)
def test_random_convolutions_match_the_reference(seeds: Iterable[int]) -> None:
    """All kernels; rings that go round and that are never full, groups, filters that fill no tile, shared tiles."""
    met = set().union(*(met_in(seed, FLOAT32) for seed in seeds))
    parts = {f"{each} parts" for each in PARTS}
    others = {"many tiles", "filled tile", "a part without k-blocks"}
    assert met >= {*KERNELS[FLOAT32], True, False, "1 groups", "2 groups", *others, *parts}


@needs_compiler
@pytest.mark.parametrize("dtype", sampled(HALVES, HALVES[:1]))
@random_seeds((0, 3, 6), 50)
def test_random_convolutions_in_half_precision_match_the_reference(seeds: Iterable[int], dtype: str) -> None:
    """Rings that go round and that are never full."""
    met = set().union(*(met_in(seed, dtype) for seed in seeds))
    assert met >= {True, False}


@needs_compiler
@random_seeds((0, 3, 6), 50)
def test_random_convolutions_rounded_as_tf32_match_the_reference(seeds: Iterable[int]) -> None:
    """Rings that go round and that are never full."""
    met = set().union(*(met_in(seed, FLOAT32, TF32_VARIANT) for seed in seeds))
    assert met >= {True, False}


def random_volumes(choose: Callable[[Sequence[int]], int]) -> Volumes | None:
    """How maps of volumes are read; None where a kernel is longer than a volume."""
    size, taps, stride, dilation = choose((1, 2, 4, 5)), choose((1, 2, 3)), choose((1, 2)), choose((1, 2))
    before, after = choose((0, 1, 2)), choose((0, 1, 2))
    outputs = (size + before + after - (taps - 1) * dilation - 1) // stride + 1
    return Volumes(size, outputs, taps, stride, dilation, before) if outputs > 0 else None


@needs_compiler
@random_seeds((1, 2, 4, 6, 7, 9), 50)
def test_maps_of_random_volumes_are_read_in_place(seeds: Iterable[int]) -> None:
    """Beyond their ends, with strides and dilation, in groups; by both kinds of kernels."""
    met = set[object]()
    for seed in seeds:
        choose = random.Random(f"{seed} volumes").choice
        if (volumes := random_volumes(choose)) is None:
            continue
        groups, n = choose((1, 2)), choose((1, 2, 3)) * volumes.outputs
        c, k = groups * volumes.taps * choose((1, 3, 6)), groups * choose((96, 128, 200))
        spec = ConvSpec(
            n, c, choose((3, 5, 9)), choose((3, 4, 8)), k, choose((1, 3)), 3, (choose((1, 2)), 1), (1, 0, 1, 1),
            groups=groups, bias=True, residual=choose((False, True)), relu=True, volumes=volumes,
        )  # fmt: skip
        weight, arguments = normal_weight(spec, 0.2, seed), reference.random_arguments(spec, seed)
        for variant in ("", TF32_VARIANT):
            space = space_of(spec, weight, variant)
            tiling = choose(space.ranked)[1]
            (weights,) = space.packed(weight, {name: getattr(tiling, name) for name in space.choices})
            expected = reference.reference(spec, weight=weight, **arguments)
            error = expected.within(arithmetic_of(space.name), weight).worst(run(tiling, weights, arguments))
            assert error <= 1, f"{error}: {tiling}"
        met |= {f"{groups} groups", volumes.before > 0, f"stride {volumes.stride}", f"{volumes.taps} taps"}
    assert met >= {"1 groups", "2 groups", True, False, "stride 1", "stride 2", "1 taps", "3 taps"}


def test_volumes_of_more_taps_than_bits_are_not_read_in_place() -> None:
    """They are maps beside each other, which is what the kernel is made for then."""
    spec = replace(LAYER, n=4, c=48, r=5, s=5, h=9, volumes=Volumes(4, 4, 2))
    assert quad_cuda.reads_volumes(spec, None) == replace(spec, volumes=None)
    pattern = SparsityPattern.of(normal_weight(spec, 0.1, 0))
    assert "in place" in quad_cuda.FAMILY.can_serve(spec, pattern, TARGET)
    assert quad_cuda.reads_volumes(replace(spec, r=3), None).volumes == spec.volumes


@needs_compiler
def test_pixels_of_many_large_images_are_found() -> None:
    """Numbers whose product with the divisor exceeds 32 bits, at both ends of each image."""
    for size in (112 * 112, 224 * 224, 299 * 299, 7 * 7, 1):
        m = multiplier(size)
        for image in (1, 2, 63, 64, 255):
            assert quotient(image * size - 1, size, m) == image - 1
            assert quotient(image * size, size, m) == image


@needs_compiler
def test_low_parts_are_what_makes_it_float32() -> None:
    """Hundreds of times as near as TF32; not so where inputs are cut to that."""
    spec = ConvSpec(1, 64, 8, 8, 128, 3, 3, padding=(1, 1, 1, 1))
    weight = random_weight(spec, 0.1, "unstructured", 1, integers=False)
    tiling = QuadTiling(spec, 1, 64)
    check_low_parts(spec, weight, lambda x: run(tiling, packed(weight, tiling), {"x": x}))


@needs_compiler
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("size", [1e30, 1e6, 3e-5, 1e-30])
def test_inputs_beyond_float16_are_scaled(size: float, tf32: bool) -> None:
    """Of one image, whose neighbours in a tile do not notice; infinity reaches nothing but its own outputs."""
    spec = ConvSpec(3, 16, 8, 8, 128, 3, 3, padding=(1, 1, 1, 1), bias=True)
    weight = random_weight(spec, 0.1, "unstructured", 1, integers=False)
    weight *= np.float32(10.0) ** np.random.default_rng(2).integers(-6, 6, (128, 1, 1, 1)).astype(np.float32)
    arguments = reference.random_arguments(spec, 1)
    arguments["bias"][:] = 0
    tiling = QuadTiling(spec, 1, 96, 2, tf32)
    before = run(tiling, packed(weight, tiling), arguments)
    arguments["x"][0] *= np.float32(size)
    y = run(tiling, packed(weight, tiling), arguments)
    assert np.array_equal(y[1:], before[1:])
    one = replace(spec, n=1)
    alone = reference.reference(one, arguments["x"][:1], weight, arguments["bias"])
    worst = alone.within(ONE_HALF if tf32 else THREE_HALF, weight).worst(y[:1])
    assert worst < (1 if tf32 else 0.5)
    arguments["x"][1, 0, 3, 3] = np.inf
    again = run(tiling, packed(weight, tiling), arguments)
    assert np.array_equal(again[[0, 2]], y[[0, 2]]) and np.array_equal(again[1, :, 5:], y[1, :, 5:])
    assert not np.isfinite(again[1, :, 2:5, 2:5]).all(axis=(1, 2)).all()


@needs_compiler
def test_the_relu_keeps_nan() -> None:
    """Of a filter whose bias is none."""
    weight, arguments = normal_weight(LAYER, 0.1, 0), reference.random_arguments(LAYER, 1)
    arguments["bias"][5] = np.nan
    tiling = QuadTiling(LAYER, 1, 64)
    y = run(tiling, packed(weight, tiling), arguments)
    assert np.isnan(y[:, 5]).all() and np.isnan(y).sum() == y[:, 5].size


@needs_compiler
def test_an_infinite_input_reaches_no_filter_without_a_weight_for_it() -> None:
    """What no filter uses is in no four, and what fills a k-block up is read anyway."""
    spec = ConvSpec(1, 8, 8, 8, 128, 1, 1)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[:, 3] = 1
    x = np.ones(spec.input_shape, np.float32)
    x[0, 0] = np.inf
    tiling = QuadTiling(spec, 1, 64)
    assert (run(tiling, packed(weight, tiling), {"x": x}) == 1).all()


@pytest.mark.parametrize(("density", "filters"), [(0.1, 256), (0.2, 256), (0.25, 128), (0.4, 128)])
def test_positions_find_fours(density: float, filters: int) -> None:
    """Each is in one, no filter uses more than two; hardly one is left where a filter uses one in five."""
    uses = np.random.default_rng(0).random((filters, 4608)) < density
    found = quads(uses)
    assert sorted(found[found >= 0]) == list(range(4608))
    used = np.concatenate([uses, np.zeros((filters, 1), bool)], axis=1)[:, found]
    assert (used.sum(axis=2) <= 2).all()
    assert density > 0.25 or len(found) <= 1.01 * 4608 / 4
    # Of neighbours, so that what they read is in the cache.
    four = found[found[:, 3] >= 0]
    assert density > 0.25 or (np.ptp(four, axis=1) < 2 * WINDOW).mean() > 0.9


@pytest.mark.parametrize("densities", [(0.1,), pytest.param((0.05, 0.2, 0.4), marks=pytest.mark.exhaustive)])
def test_the_estimate_of_k_blocks_is_near(densities: tuple[float, ...]) -> None:
    """For unstructured weights of several densities, and for filters that share their zeros, which fit nothing."""
    spec = replace(LAYER, c=256)
    for density in densities:
        weight = normal_weight(spec, density, 0)
        space, found = space_of(spec, weight), {}
        for _, tiling in space.ranked:
            # Pixels and parts change nothing about how a tile's weights are packed, which takes long.
            if tiling.filters not in found:
                found[tiling.filters] = k_blocks_of(packed(weight, tiling), tiling)
            k_blocks = found[tiling.filters]
            assert k_blocks == pytest.approx(space.k_blocks(tiling), rel=0.15), (density, tiling)
    mask = np.random.default_rng(0).random((1, 256, 3, 3)) < 0.1
    weight = (normal_weight(spec, 1.0, 0) * mask).astype(np.float32)
    (tiling,) = {replace(each, pixels=64, parts=1) for _, each in space_of(spec, weight).ranked if each.m_tiles == 1}
    k_blocks = k_blocks_of(packed(weight, tiling), tiling)
    assert k_blocks == pytest.approx(2 * mask.sum() / K_BLOCK, rel=0.1)
    assert k_blocks == pytest.approx(space_of(spec, weight).k_blocks(tiling), rel=0.15)


def test_what_is_not_served_says_why() -> None:
    """Few filters, other types and GPUs, a single pixel, large filters and too many positions."""
    can_serve = quad_cuda.FAMILY.can_serve
    pattern = SparsityPattern.of(normal_weight(LAYER, 0.1, 0))
    for spec, words in (
        (replace(LAYER, k=64), "64 filters"),
        (ConvSpec(64, 64, 1, 1, 128, 1, 1), "far apart in memory"),
        (replace(LAYER, r=7, s=5, h=20, w=20), "35 taps"),
        (ConvSpec(1, 1024, 1024, 1024, 128, 1, 1), "elements, at most"),
        (ConvSpec(2, 512, 1024, 1024, 128, 1, 1), "elements, at most"),
    ):
        assert words in can_serve(spec, pattern, TARGET)
    for arch in ("sm_80", "sm_100"):
        assert "compute capability 9.0" in can_serve(LAYER, pattern, Target({"kind": "cuda", "arch": arch}))
    # The deep layers of VGG16, where one in five weights is left, are served.
    deep = replace(LAYER, c=512)
    assert space_of(deep, normal_weight(deep, 0.2, 0)).ranked
    # More positions than a block has room for are shared by several, as far as a cluster goes.
    large = replace(LAYER, c=1024)
    weight = normal_weight(large, 0.1, 0)
    space = space_of(large, weight)
    assert {tiling.parts for _, tiling in space.ranked} == {2, 4, 8}
    with pytest.raises(BuildError, match="too many positions"):
        space.packed(weight, {"m_tiles": 1, "pixels": 64, "parts": 1})
    assert "no tile" in can_serve(replace(LAYER, c=8192), pattern, TARGET)


def test_decisions_that_do_not_fit_are_refused() -> None:
    """By what is wrong with them."""
    spec = replace(LAYER, k=128)
    weight = normal_weight(spec, 0.1, 0)
    space = find_space("quad_cuda", spec, SparsityPattern.of(weight), TARGET)
    with pytest.raises(BuildError, match="no kernel has 3 tiles"):
        space.packed(weight, {"m_tiles": 3, "pixels": 64})
    with pytest.raises(BuildError, match="3 parts of a tile"):
        space.packed(weight, {"m_tiles": 1, "pixels": 64, "parts": 3})


def test_it_is_named_in_the_decision_table() -> None:
    """What it computes in is neither float32 nor TF32."""
    assert precision_of("quad_cuda", "float32") == "3xFP16"
    assert arithmetic_of("quad_cuda") == THREE_HALF


def test_one_function_takes_every_weight() -> None:
    """The same kernel, called with other packed weights."""
    weights = [normal_weight(LAYER, density, 0) for density in (0.1, 0.05)]
    one, other = (
        make_kernel("quad_cuda", LAYER, each, TARGET, {"m_tiles": 1, "pixels": 96, "parts": 2}) for each in weights
    )
    assert one.func.script() == other.func.script()
    assert not np.array_equal(one.constants[0], other.constants[0])


def test_half_a_tile_may_be_of_zeros() -> None:
    """384 filters in tiles of 256 take one wave of an H200's blocks, in tiles of 128 three that are half as long."""
    spec = ConvSpec(32, 384, 14, 14, 384, 3, 3, padding=(1, 1, 1, 1))
    target = Target({"kind": "cuda", "arch": "sm_90", "model": "NVIDIA H200, 132 multiprocessors"})
    space = find_space("quad_cuda", spec, SparsityPattern.of(normal_weight(spec, 0.1, 0)), target)
    assert isinstance(space, QuadSpace)
    times_us = {tiling.m_tiles: time_us for time_us, tiling in reversed(space.ranked)}
    assert times_us[2] < 0.85 * times_us[1]
    assert {
        tiling.m_tiles
        for _, tiling in space_of(replace(spec, k=320), normal_weight(replace(spec, k=320), 0.1, 0)).ranked
    } == {1}
