"""Linear layers on many images on a GPU, emulated, against the float64 reference."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable

import numpy as np
import pytest
from linear_emulator import KERNELS, run
from parameters import random_seeds
from random_convolutions import random_images_case, random_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules import linear_cuda
from tvm_sparse.schedules.lookup import find_space, make_kernel
from tvm_sparse.scheduling.cuda.linear.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.linear.packing import packed
from tvm_sparse.scheduling.cuda.linear.space import ManyImagesSpace
from tvm_sparse.scheduling.cuda.linear.tiling import WARPS, LinearTiling

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


def layer(n: int, c: int, k: int, **others: object) -> ConvSpec:
    """The spec of a linear layer."""
    return ConvSpec(n, c, 1, 1, k, 1, 1, **others)


def met_in(seed: int) -> set[object]:
    """What a random layer has of what the test looks for; it is right."""
    choose = random.Random(f"{seed} many images").choice
    case = random_images_case(choose)
    spaces = linear_cuda.spaces(case.spec, SparsityPattern.of(case.weight, case.spec.groups), TARGET)
    space = choose([each for each in spaces if isinstance(each, ManyImagesSpace)])
    tiling = choose([each for _, each in space.ranked])
    (weights,) = space.packed(case.weight, {name: getattr(tiling, name) for name in space.choices})
    assert tiling.kernel in LIBRARIES[case.spec.dtype].names
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    error = case.error(arguments, run(tiling, weights, arguments))
    assert error <= 1, f"{error}: {tiling}, {case!r}"
    met = {(tiling.lane_images, tiling.shared), case.spec.dtype, f"{tiling.parts} parts"}
    return met | ({"chunks"} if tiling.chunks > 1 else set())


@needs_compiler
@random_seeds((7, 11, 35, 46, 47, 54, 56, 57), 60)
def test_random_layers_match_the_reference(seeds: Iterable[int]) -> None:
    """Tilings at random: several chunks, clusters, filters and images that fill no block, all kernels and types."""
    met = set().union(*map(met_in, seeds))
    assert met >= {*KERNELS, FLOAT32, FLOAT16, BFLOAT16, "1 parts", "2 parts", "4 parts", "8 parts", "chunks"}


@needs_compiler
def test_the_relu_keeps_nan() -> None:
    """Of a filter whose bias is none."""
    spec = layer(64, 96, 40, bias=True, relu=True)
    weight, arguments = normal_weight(spec, 0.2, 0), reference.random_arguments(spec, 1)
    arguments["bias"][5] = np.nan
    tiling = LinearTiling(spec, 2 * WARPS, 2, 1)
    y = run(tiling, packed(weight, tiling), arguments)
    assert np.isnan(y[:, 5]).all() and np.isnan(y).sum() == y[:, 5].size


@needs_compiler
def test_infinity_passes_zeros_by() -> None:
    """What fills a step up is not multiplied with an input."""
    spec = layer(40, 300, 20)
    weight = random_weight(spec, 0.1, "unstructured", 3, integers=False)
    x = reference.random_arguments(spec, 0)["x"]
    x[0, 0] = np.inf
    tiling = LinearTiling(spec, 32, 1, 2)
    y = run(tiling, packed(weight, tiling), {"x": x})
    np.testing.assert_array_equal(np.isfinite(y[0, :, 0, 0]), weight[:, 0, 0, 0] == 0)
    assert np.isfinite(y[1:]).all()


def test_warps_have_about_as_many_steps() -> None:
    """In each chunk, though some filters have many more non-zeros than others."""
    spec = layer(64, 768, 128)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(spec.weight_shape, np.float32)
    weight[rng.random(spec.weight_shape) >= np.linspace(0.02, 0.3, spec.k)[:, None, None, None]] = 0
    tiling = LinearTiling(spec, 128, 2, 1)
    streams = packed(weight, tiling).reshape(WARPS, -1, 2, 4)
    for chunk in range(tiling.chunks):
        counts = np.zeros(WARPS, int)
        for warp, steps in enumerate(streams):
            at = 0
            for row in range((chunk + 1) * tiling.rows):
                counts[warp] += int(steps[at, 0, 0]) * (row >= chunk * tiling.rows)
                at += 1 + int(steps[at, 0, 0])
        assert counts.max() < 1.15 * counts.mean()


def test_filters_go_together_where_they_share_zeros_or_have_none() -> None:
    """Few images, filters that do not divide, or unstructured zeros: one at a time."""
    spec = layer(64, 4096, 1000)
    for density, expected in ((1.0, ["images-filters8", "images-filters4", "images", ""]), (0.1, ["images", ""])):
        pattern = SparsityPattern.of(normal_weight(spec, density, 0))
        assert [each.variant for each in linear_cuda.spaces(spec, pattern, TARGET)] == expected
    pattern = SparsityPattern.of(normal_weight(layer(8, 512, 1000), 0.1, 0))
    assert [each.variant for each in linear_cuda.spaces(layer(8, 512, 1000), pattern, TARGET)] == [""]
    older = Target({"kind": "cuda", "arch": "sm_80"})
    assert [each.variant for each in linear_cuda.spaces(spec, pattern, older)] == [""]


def test_decisions_that_do_not_fit_are_a_sentence() -> None:
    """A log may hold decisions of another layer."""
    spec = layer(64, 16, 256)
    for decisions, sentence in (
        ({"filters": 16, "lane_images": 2, "parts": 8}, "8 parts of 16 inputs"),
        ({"filters": 256, "lane_images": 4, "parts": 1}, "exceed shared memory"),
    ):
        with pytest.raises(BuildError, match=sentence):
            make_kernel("linear_cuda:images", spec, np.ones(spec.weight_shape, np.float32), TARGET, decisions)


def test_a_name_finds_its_space() -> None:
    """Also where a search is not offered it."""
    spec = layer(4, 64, 64)
    pattern = SparsityPattern.of(np.ones(spec.weight_shape, np.float32))
    for name in ("linear_cuda", "linear_cuda:images", "linear_cuda:images-filters4", "linear_cuda:images-filters8"):
        assert find_space(name, spec, pattern, TARGET).name == name
