"""Linear layers on many images on tensor cores, emulated, against the float64 reference."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from linear_tensor_emulator import KERNELS, run, table_bytes
from parameters import random_seeds
from random_convolutions import random_tiles_case, random_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import FLOAT16
from tvm_sparse.conv.error_bounds import CORRECTED_TF32, TF32
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules import linear_tensor_cuda
from tvm_sparse.schedules.lookup import arithmetic_of, family_of, find_space, make_kernel, precision_of
from tvm_sparse.scheduling.cuda.linear_tensor.packing import BANKS, packed
from tvm_sparse.scheduling.cuda.linear_tensor.space import LinearTensorSpace
from tvm_sparse.scheduling.cuda.linear_tensor.tiling import (
    FILTERS,
    K_BLOCK,
    MAX_K_BLOCKS,
    PARTS,
    QUAD,
    STAGES,
    LinearTensorTiling,
)

TARGET = Target({"kind": "cuda", "arch": "sm_90", "model": "NVIDIA H100"})
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


def layer(n: int, c: int, k: int, **others: object) -> ConvSpec:
    """The spec of a linear layer."""
    return ConvSpec(n, c, 1, 1, k, 1, 1, **others)


def spaces_of(spec: ConvSpec, weight: np.ndarray) -> list[LinearTensorSpace]:
    """The spaces of a linear layer."""
    found = linear_tensor_cuda.spaces(spec, SparsityPattern.of(weight), TARGET)
    assert all(isinstance(each, LinearTensorSpace) for each in found)
    return found


def met_in(seed: int) -> set[object]:
    """What a random layer has of what the test looks for; it is right."""
    choose = random.Random(f"{seed} tiles").choice
    case = random_tiles_case(choose)
    space = choose(spaces_of(case.spec, case.weight))
    tilings = [each for _, each in space.ranked]
    wish = choose(FILTERS)
    tiling = choose([each for each in tilings if each.filters == wish] or tilings)
    (weights,) = space.packed(case.weight, {name: getattr(tiling, name) for name in space.choices})
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    error = case.error(arguments, run(tiling, weights, arguments), arithmetic_of(space.name))
    assert error <= 1, f"{error}: {tiling}, {case!r}"
    met = {(tiling.filters, tiling.dense), f"{tiling.parts} parts", f"{tiling.images} images", case.integers}
    met |= {"ring"} if tiling.part_k_blocks > 2 * STAGES else set()
    met |= {"unaligned"} if case.spec.c % 4 else set()
    return met | ({"image blocks"} if tiling.grid[2] > 1 else set())


@needs_compiler
@random_seeds((1, 2, 4, 5, 8, 13, 16, 19, 38), 40)
def test_random_layers_match_the_reference(seeds: Iterable[int]) -> None:
    """All kernels, clusters of all sizes, rings that go round, unaligned rows, what fills no tile, k-block or block."""
    met = set().union(*map(met_in, seeds))
    parts = {f"{each} parts" for each in PARTS}
    others = {"ring", "unaligned", "image blocks", "64 images", "128 images"}
    assert met >= {*KERNELS, *parts, *others, True, False}


@needs_compiler
@pytest.mark.parametrize("filters", FILTERS)
def test_lists_longer_than_their_room_are_read_from_memory(filters: int) -> None:
    """K-blocks of one list and another in turns through a ring: full ones, empty ones, and some of few."""
    spec = layer(64, 40 * 32, filters, bias=True)
    weight = normal_weight(spec, 0.1, 0)
    weight.reshape(filters, -1, 32)[:, 1::5] = np.random.default_rng(1).standard_normal((filters, 8, 32))
    weight.reshape(filters, -1, 32)[:, 2::7] = 0
    tiling = LinearTensorTiling(spec, filters, 64, 2)
    assert tiling.room * QUAD < tiling.places / 2
    arguments = reference.random_arguments(spec, 0)
    y = run(tiling, packed(weight, tiling), arguments)
    expected = reference.reference(spec, arguments["x"], weight, arguments["bias"])
    assert expected.within(CORRECTED_TF32, weight).worst(y) < 0.2


@needs_compiler
@pytest.mark.parametrize("dense", [False, True])
def test_corrections_are_what_makes_it_float32(dense: bool) -> None:
    """Hundreds of times as near as TF32; not so with a part of the inputs left out."""
    spec = layer(64, 576, 128)
    weight = random_weight(spec, 1.0 if dense else 0.1, "unstructured", 1, integers=False)
    x = reference.random_arguments(spec, 1)["x"]
    expected = reference.reference(spec, x, weight)
    tiling = LinearTensorTiling(spec, 64, 64, 1, dense)
    y = run(tiling, packed(weight, tiling), {"x": x})
    worst = expected.within(CORRECTED_TF32, weight).worst(y)
    assert worst < 0.1 and expected.within(TF32, weight).worst(y) < 1 / 300
    cut = reference.reference(spec, (x.view(np.int32) & -0x2000).view(np.float32), weight).value.astype(np.float32)
    assert expected.within(CORRECTED_TF32, weight).worst(cut) > 20 * worst


@needs_compiler
def test_the_relu_keeps_nan() -> None:
    """Of a filter whose bias is none."""
    spec = layer(64, 96, 40, bias=True, relu=True)
    weight, arguments = normal_weight(spec, 0.2, 0), reference.random_arguments(spec, 1)
    arguments["bias"][5] = np.nan
    tiling = LinearTensorTiling(spec, 64, 64, 1)
    y = run(tiling, packed(weight, tiling), arguments)
    assert np.isnan(y[:, 5]).all() and np.isnan(y).sum() == y[:, 5].size


@needs_compiler
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_makes_the_outputs_of_its_image_nan(value: float) -> None:
    """And of no other image: zeros are multiplied too, also those that fill up the last k-block."""
    spec = layer(70, 300, 20)
    weight = random_weight(spec, 0.1, "unstructured", 3, integers=False)
    x = reference.random_arguments(spec, 0)["x"]
    x[3, 299], x[69, 0] = value, value
    tiling = LinearTensorTiling(spec, 64, 128, 2)
    y = run(tiling, packed(weight, tiling), {"x": x})
    np.testing.assert_array_equal(np.isnan(y).all(axis=(1, 2, 3)), np.isin(np.arange(70), (3, 69)))
    assert np.isnan(y).sum() == 2 * spec.k


@needs_compiler
def test_a_dense_layer_of_few_images_is_served() -> None:
    """Of five and more, by name; lists are not."""
    spec = layer(5, 200, 136, bias=True, relu=True)
    weight = normal_weight(spec, 1.0, 0)
    pattern = SparsityPattern.of(weight)
    space = linear_tensor_cuda.named(spec, pattern, TARGET, "dense")
    assert isinstance(space, LinearTensorSpace)
    assert linear_tensor_cuda.named(spec, pattern, TARGET, "") is None
    assert linear_tensor_cuda.named(replace(spec, n=4), pattern, TARGET, "dense") is None
    _, tiling = space.ranked[0]
    (weights,) = space.packed(weight, {name: getattr(tiling, name) for name in space.choices})
    arguments = reference.random_arguments(spec, 0)
    expected = reference.reference(spec, weight=weight, **arguments)
    y = run(tiling, weights, arguments)
    assert expected.within(CORRECTED_TF32, weight).worst(y) < 0.2


@pytest.mark.parametrize("filters", FILTERS)
def test_lists_hold_the_weight(filters: int) -> None:
    """Each non-zero at its place, in whole quads; a write takes half as many accesses as in random order (3.4)."""
    spec = layer(64, 900, 300)
    weight = normal_weight(spec, 0.1, 0)
    tiling = LinearTensorTiling(spec, filters, 64, 1)
    bytes_ = packed(weight, tiling).tobytes()
    lists = tiling.tiles * tiling.k_blocks
    begins = np.frombuffer(bytes_, np.int32, lists + 1)
    head, quads = -(-(lists + 1) // 4) * 16, int(begins[-1])
    values = np.frombuffer(bytes_, np.float32, quads * QUAD, head).reshape(-1, QUAD)
    places = np.frombuffer(bytes_, np.uint16, quads * QUAD, head + quads * 16).reshape(-1, QUAD)
    found, accesses, writes = np.zeros((tiling.tiles, tiling.k_blocks, tiling.places), np.float32), 0, 0
    for i in range(lists):
        own = slice(begins[i], begins[i + 1])
        found[i // tiling.k_blocks, i % tiling.k_blocks][places[own] // 4] = values[own]
        for first in range(begins[i], begins[i + 1], 32):
            for lane_places in places[first : min(first + 32, begins[i + 1])].T:
                accesses += np.bincount(np.unique(lane_places) // 4 % BANKS).max()
                writes += 1
    assert accesses < 1.9 * writes
    dense = packed(weight, replace(tiling, dense=True)).view(np.float32).reshape(found.shape)
    np.testing.assert_array_equal(found, dense)
    k, c = 123, 456
    place = tiling.place(np.array(k % filters), np.array(c % K_BLOCK))
    assert dense[k // filters, c // K_BLOCK, place] == weight[k, c, 0, 0]
    assert np.count_nonzero(dense) == np.count_nonzero(weight)


def test_packing_is_fast() -> None:
    """A million non-zeros of four million weights."""
    spec = layer(64, 4096, 1024)
    weight = normal_weight(spec, 0.25, 0)
    tiling = LinearTensorTiling(spec, 144, 64, 4)
    packed(weight, tiling)
    started = time.process_time()
    packed(weight, tiling)
    assert time.process_time() - started < 1


@needs_compiler
@pytest.mark.parametrize("filters", FILTERS)
def test_shared_memory_holds_what_the_kernel_puts_there(filters: int) -> None:
    """The ring, lists, and where the k-blocks of a part begin."""
    tiling = LinearTensorTiling(layer(64, 4096, 4096), filters, 128, 4)
    assert tiling.shared_bytes >= table_bytes(filters) + 4 * (MAX_K_BLOCKS + 1)
    assert tiling.shared_bytes <= 227 << 10


def test_what_is_not_served_says_why() -> None:
    """Few images, other types and GPUs, groups and maps."""
    can_serve = linear_tensor_cuda.FAMILY.can_serve
    spec = layer(64, 512, 512)
    pattern = SparsityPattern.of(normal_weight(spec, 0.1, 0))
    for other, words in (
        (replace(spec, n=8), "8 images, at least 16"),
        (replace(spec, dtype=FLOAT16), "float16"),
        (replace(spec, groups=2), "of one group"),
        (replace(spec, h=7, w=7), "linear layers"),
    ):
        assert words in can_serve(other, pattern, TARGET)
        assert linear_tensor_cuda.named(other, pattern, TARGET, "") is None
    for arch in ("sm_80", "sm_100"):
        assert "compute capability 9.0" in can_serve(spec, pattern, Target({"kind": "cuda", "arch": arch}))
    assert linear_tensor_cuda.named(spec, pattern, TARGET, "tf32") is None


def test_decisions_that_do_not_fit_are_a_sentence() -> None:
    """A log may hold decisions of another layer."""
    spec = layer(64, 96, 256)
    for decisions, sentence in (
        ({"filters": 96, "images": 64, "parts": 1}, "no kernel has 96 filters"),
        ({"filters": 64, "images": 64, "parts": 9}, "9 parts"),
        ({"filters": 64, "images": 64, "parts": 4}, "4 parts of 3 k-blocks"),
    ):
        with pytest.raises(BuildError, match=sentence):
            find_space(
                "linear_tensor_cuda", spec, SparsityPattern.of(np.ones(spec.weight_shape, np.float32)), TARGET
            ).packed(np.ones(spec.weight_shape, np.float32), decisions)
    assert "k-blocks of inputs, at most" in LinearTensorTiling(layer(64, 40_000, 64), 64, 64, 1).obstacle


def test_what_is_expected_ranks_it() -> None:
    """Before the kernels without tensor cores, dense weights as such, and blocks that fill one wave."""
    spec = layer(64, 1536, 4096)
    for density, first in ((0.1, "linear_tensor_cuda"), (1.0, "linear_tensor_cuda:dense")):
        weight = normal_weight(spec, density, 0)
        spaces = spaces_of(spec, weight)
        assert spaces[0].name == first and len(spaces) == 2
        grid = spaces[0].ranked[0][1].grid
        assert 90 < np.prod(grid) <= 132
        others = find_space("linear_cuda:images", spec, SparsityPattern.of(weight), TARGET)
        assert spaces[0].estimate_us < 0.85 * others.estimate_us


def test_a_name_finds_its_space_and_says_how_it_computes() -> None:
    """Lists and dense weights alike."""
    spec = layer(64, 64, 64)
    pattern = SparsityPattern.of(np.ones(spec.weight_shape, np.float32))
    for name in ("linear_tensor_cuda", "linear_tensor_cuda:dense"):
        assert find_space(name, spec, pattern, TARGET).name == name
        assert precision_of(name, "float32") == "TF32+BF16" and arithmetic_of(name) == CORRECTED_TF32
        assert not family_of(name).is_compiled


def test_one_function_takes_every_weight() -> None:
    """The same kernel, called with other packed weights."""
    spec = layer(64, 512, 512)
    weights = [normal_weight(spec, density, 0) for density in (0.1, 0.05)]
    decisions = {"filters": 128, "images": 64, "parts": 4}
    one, other = (make_kernel("linear_tensor_cuda", spec, each, TARGET, decisions) for each in weights)
    assert one.func.script() == other.func.script()
    assert one.constants[0].size > other.constants[0].size
