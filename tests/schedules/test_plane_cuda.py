"""Convolutions of planes that 64 filters share, emulated, against the float64 reference."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from low_parts import check_low_parts
from parameters import random_seeds
from plane_emulator import run
from random_convolutions import random_plane_case, random_weight
from tvm.target import Target

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.error_bounds import TENSOR_CORES, THREE_HALF
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import stored
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules import plane_cuda
from tvm_sparse.schedules.lookup import arithmetic_of, family_of, find_space, make_kernel, precision_of
from tvm_sparse.scheduling.cuda.plane.packing import packed
from tvm_sparse.scheduling.cuda.plane.space import PlaneSpace
from tvm_sparse.scheduling.cuda.plane.tiling import CHANNEL, GROUPS_AT, MAX_SLOTS, PIXELS, ROW, TAP, PlaneTiling

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
LAYER = ConvSpec(3, 24, 9, 8, 128, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True, dtype=FLOAT16)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to emulate CUDA code")


def weight_of(spec: ConvSpec, structure: str, density: float = 0.2) -> np.ndarray:
    """A weight whose zeros have that structure."""
    weight = random_weight(spec, 1.0, "unstructured", 1, integers=False)
    weight *= structured_mask(np.abs(weight), Structure.named(structure), 1 - density)
    return stored(weight, spec.dtype).astype(np.float32)


def space_of(spec: ConvSpec, weight: np.ndarray) -> PlaneSpace:
    """The space of a convolution."""
    (space,) = plane_cuda.spaces(spec, SparsityPattern.of(weight, spec.groups), TARGET)
    assert isinstance(space, PlaneSpace)
    return space


def met_in(seed: int) -> set[object]:
    """What a random case has of what the test looks for; it is right."""
    rng = random.Random(f"{seed} planes")
    case = random_plane_case(rng.choice)
    space = space_of(case.spec, case.weight)
    tiling, multiprocessors = rng.choice(space.ranked)[1], rng.choice((1, 5))
    weights, needed = space.packed_for(case.weight, tiling)
    if needed > space.gpu.block_shared_bytes:
        # Of one tile of filters much more than the pattern says of all.
        return {"exceeds"}
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    y = run(tiling, weights, arguments, multiprocessors)
    error = case.error(arguments, y, arithmetic_of(space.name))
    assert error <= 1, f"{error}: {tiling}, {case!r}"
    chunks = int(weights[0, 0, 1])
    met = {(tiling.pixels, case.spec.dtype), f"plane {tiling.plane}", f"{tiling.vector} pixels", case.integers}
    met |= {"ring goes round"} if chunks * tiling.tiles // tiling.workers(multiprocessors) > MAX_SLOTS else set()
    met |= {"chunks"} if chunks > 1 else {"no chunk"} if chunks == 0 else set()
    met |= {"one tile"} if tiling.tiles == 1 else {"many tiles"}
    return met | {f"{min(case.spec.groups, 2)} groups", f"stride {case.spec.stride}", f"residual {case.spec.residual}"}


@needs_compiler
@random_seeds((3, 6, 13, 17, 18, 21, 36, 46, 52, 58), 72)
def test_random_convolutions_match_the_reference(seeds: Iterable[int]) -> None:
    """All kernels and planes, in both types; rings that go round, blocks with many tiles and with one."""
    met = set().union(*map(met_in, seeds))
    assert met >= {(pixels, dtype) for dtype in PIXELS for pixels in PIXELS[dtype]}
    assert met >= {*(f"plane {each}" for each in (CHANNEL, ROW, TAP)), "1 pixels", "2 pixels", True, False, "1 groups"}
    assert met >= {"2 groups", "ring goes round", "chunks", "no chunk", "one tile", "many tiles", "stride (2, 2)"}
    assert met >= {"residual True", "residual False"}


@needs_compiler
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (0, 3, 2, 1), (3, 0, 0, 4)])
def test_neighbours_share_the_zeros_between_them(padding: tuple[int, int, int, int]) -> None:
    """Rows and images, whatever pads them, with taps that are side by side or not."""
    for taps, dilation in ((3, 1), (3, 2), (5, 1)):
        spec = replace(LAYER, h=11, w=10, r=taps, s=taps, padding=padding, dilation=(dilation, dilation), k=64)
        weight, arguments = weight_of(spec, "slice64c"), reference.random_arguments(spec, 2)
        expected = reference.reference(spec, arguments["x"], weight, arguments["bias"], arguments["residual"])
        for plane in (CHANNEL, ROW, TAP):
            tiling = PlaneTiling(spec, 64, plane, 4)
            y = run(tiling, packed(weight, tiling), arguments)
            assert expected.within(TENSOR_CORES, weight).worst(y) <= 1, (taps, dilation, plane)
    shared = PlaneTiling(replace(LAYER, w=56, h=56), 192, CHANNEL, 4)
    assert (shared.pitch, shared.rows) == (58, 57)


@needs_compiler
def test_an_infinite_input_reaches_no_filter_that_does_not_use_its_plane() -> None:
    """What fills a group up is read anyway."""
    spec = ConvSpec(1, 16, 8, 8, 128, 1, 1, dtype=FLOAT16)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[:64, 3], weight[64:, 5] = 1, 1
    x = np.ones(spec.input_shape, np.float16)
    x[0, 5, 2, 2] = np.inf
    tiling = PlaneTiling(spec, 64, CHANNEL, 1)
    y = run(tiling, packed(weight, tiling), {"x": x})
    assert (y[:, :64] == 1).all() and not np.isfinite(y[:, 64:, 2, 2]).any() and (y[:, 64:] == 1).sum() == 64 * 63


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
def test_the_relu_keeps_nan_and_has_a_limit(dtype: str) -> None:
    """Of a filter whose bias is none; others are between 0 and 6."""
    spec = replace(LAYER, relu_max=6.0, dtype=dtype)
    weight, arguments = 5 * weight_of(spec, "slice64c"), reference.random_arguments(spec, 1)
    arguments["bias"][5] = np.nan
    tiling = PlaneTiling(spec, 128, CHANNEL, 2)
    y = run(tiling, packed(weight, tiling), arguments).astype(np.float32)
    assert np.isnan(y[:, 5]).all() and np.isnan(y).sum() == y[:, 5].size
    others = np.delete(y, 5, axis=1)
    assert others.min() == 0 and others.max() == 6


@needs_compiler
def test_sums_are_rounded_once() -> None:
    """What is added is added in float32: 1 and 2048 are 2049, which float16 has not, and 0.5 more is 2050."""
    spec = ConvSpec(1, 64, 4, 4, 64, 1, 1, residual=True, dtype=FLOAT16)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[:, 0] = 1
    x, residual = np.full(spec.input_shape, 1.5, np.float16), np.full(spec.output_shape, 2048, np.float16)
    tiling = PlaneTiling(spec, 64, CHANNEL, 1)
    y = run(tiling, packed(weight, tiling), {"x": x, "residual": residual})
    assert (y == np.float16(2049.5)).all() and y[0, 0, 0, 0] == 2050


@needs_compiler
def test_low_parts_are_what_makes_it_float32() -> None:
    """Hundreds of times as near as TF32; not so where inputs are cut to that."""
    spec = replace(LAYER, dtype=FLOAT32, residual=False, bias=False, relu=False)
    weight, tiling = weight_of(spec, "slice64c"), PlaneTiling(spec, 128, CHANNEL, 2)
    check_low_parts(spec, weight, lambda x: run(tiling, packed(weight, tiling), {"x": x}))


@needs_compiler
@pytest.mark.parametrize(
    ("size", "plane", "stride", "dilation"),
    [(1e30, CHANNEL, 1, 1), (1e6, CHANNEL, 2, 1), (3e-5, CHANNEL, 1, 2), (1e-30, ROW, 1, 1), (1e30, TAP, 2, 1)],
)
def test_inputs_beyond_float16_are_scaled(size: float, plane: int, stride: int, dilation: int) -> None:
    """Of one image, whose neighbours in a tile do not notice; infinity reaches nothing but its own outputs."""
    spec = ConvSpec(3, 24, 9, 8, 128, 3, 3, (stride,) * 2, (2, 1, 2, 1), (dilation,) * 2, bias=True, residual=True)
    weight = weight_of(spec, "slice64c")
    weight *= np.float32(10.0) ** np.random.default_rng(2).integers(-6, 6, (128, 1, 1, 1)).astype(np.float32)
    arguments = reference.random_arguments(spec, 1)
    arguments["bias"][:], arguments["residual"][:] = 0, 0
    # Chunks, so that they go through one slot one after the other.
    tiling = PlaneTiling(spec, 128, plane, 1)
    weights = packed(weight, tiling)
    before = run(tiling, weights, arguments, 1)
    arguments["x"][0] *= np.float32(size)
    y = run(tiling, weights, arguments, 1)
    assert np.array_equal(y[1:], before[1:])
    one = replace(spec, n=1)
    alone = reference.reference(one, arguments["x"][:1], weight, arguments["bias"], arguments["residual"][:1])
    assert alone.within(THREE_HALF, weight).worst(y[:1]) < 0.5
    arguments["x"][1, :, 3, 3] = np.inf
    again = run(tiling, weights, arguments, 1)
    where = np.isinf(arguments["x"]).astype(np.float32)
    reached = reference.reference(replace(spec, bias=False, residual=False), where, np.abs(weight)).value > 0
    assert not np.isfinite(again[reached]).any() and np.array_equal(again[~reached], y[~reached])


@needs_compiler
def test_residuals_are_added_once_where_a_tile_is_computed_again() -> None:
    """Pixels of four windows beside each other, some of them without inputs."""
    spec = ConvSpec(2, 16, 8, 8, 64, 1, 1, bias=True, residual=True, relu=True, relu_max=6.0)
    weight, arguments = weight_of(spec, "slice64c", 0.5), reference.random_arguments(spec, 1)
    arguments["x"] *= np.array([1, 0, 1e9, 1e-9], np.float32)[np.random.default_rng(0).integers(0, 4, (8, 8))]
    expected = reference.reference(spec, arguments["x"], weight, arguments["bias"], arguments["residual"])
    for tiling in (PlaneTiling(spec, pixels, CHANNEL, 1) for pixels in PIXELS[FLOAT32]):
        for late_copies in (0, 30):
            y = run(tiling, packed(weight, tiling), arguments, late_copies=late_copies)
            assert expected.within(THREE_HALF, weight).worst(y) < 0.5


def test_planes_are_what_filters_share() -> None:
    """Slices over (c) are channels, over (c, r) rows, and vectors taps: so that no zero of these is multiplied."""
    spec = replace(LAYER, c=64, k=64)
    shared = (("slice64c", CHANNEL, ()), ("slice64cr", ROW, (CHANNEL,)), ("vector64", TAP, (ROW,)))
    for structure, plane, others in shared:
        weight = weight_of(spec, structure)
        count = np.count_nonzero(weight[0])

        def steps(plane: int, weight: np.ndarray = weight) -> int:
            return int(packed(weight, PlaneTiling(spec, 64, plane, 16))[0, 0, 2])

        # A group has eight planes, the last one fewer.
        assert count / 16 <= steps(plane) <= count / 16 + 5
        assert all(steps(each) > 1.3 * steps(plane) for each in others)


def test_the_estimate_of_steps_is_near() -> None:
    """For every pattern, of the planes that suit it."""
    spec = replace(LAYER, c=256, k=256)
    suited = {"slice64c": (CHANNEL, ROW), "slice64cr": (CHANNEL, ROW), "vector64": (TAP,), "vector32": (TAP,)}
    for structure, planes in suited.items():
        weight = weight_of(spec, structure, 0.1)
        space = space_of(spec, weight)
        for plane in planes:
            tiling = PlaneTiling(spec, 128, plane, 4)
            steps = packed(weight, tiling)[:, 0, 2]
            assert steps.mean() == pytest.approx(space.planes(tiling).halves / 2, rel=0.25), (structure, plane)


def test_every_channel_of_a_group_is_its_own() -> None:
    """Of a grouped convolution, whose filters read their own channels; what fills a group up is its last one."""
    spec = ConvSpec(1, 16, 4, 4, 128, 1, 1, groups=2, dtype=FLOAT16)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[:, [2, 6]] = 1
    rows = packed(weight, PlaneTiling(spec, 64, CHANNEL, 1))
    channels = rows[:, GROUPS_AT : GROUPS_AT + 2].reshape(2, 8) // 16
    assert channels.tolist() == [[2] + [6] * 7, [10] + [14] * 7]


def test_what_is_not_served_says_why() -> None:
    """Other types, filters and GPUs, single pixels, and weights that exceed shared memory."""
    can_serve = plane_cuda.FAMILY.can_serve
    pattern = SparsityPattern.of(weight_of(LAYER, "slice64c"))
    for spec, words in (
        (replace(LAYER, k=96), "96 filters each, and only multiples of 64"),
        (ConvSpec(64, 64, 1, 1, 128, 1, 1, dtype=FLOAT16), "far apart in memory"),
        (replace(LAYER, c=4096), "no tile of its input"),
        (ConvSpec(4200, 64, 64, 64, 64, 1, 1), "no tile of its input"),
    ):
        assert words in can_serve(spec, pattern, TARGET)
    for arch in ("sm_80", "sm_100"):
        assert "compute capability 9.0" in can_serve(LAYER, pattern, Target({"kind": "cuda", "arch": arch}))


def test_decisions_that_do_not_fit_are_refused() -> None:
    """By what is wrong with them."""
    weight = weight_of(LAYER, "slice64c")
    space = find_space("plane_cuda", LAYER, SparsityPattern.of(weight), TARGET)
    with pytest.raises(BuildError, match="no kernel has tiles of 100 pixels"):
        space.packed(weight, {"pixels": 100, "plane": CHANNEL, "groups": 1})
    dense = replace(LAYER, c=512)
    weight = weight_of(dense, "slice64c", 1.0)
    with pytest.raises(BuildError, match="exceed shared memory"):
        space_of(dense, weight_of(dense, "slice64c", 0.1)).packed(weight, {"pixels": 64, "plane": CHANNEL, "groups": 1})


def test_what_it_is_called() -> None:
    """Its arithmetic is that of tensor cores, in float32 in parts, and no compiler runs for a weight."""
    assert precision_of("plane_cuda:fp16", FLOAT16) == "float16, float32 sums"
    assert arithmetic_of("plane_cuda:fp16") == arithmetic_of("plane_cuda:bf16") == TENSOR_CORES
    assert precision_of("plane_cuda", FLOAT32) == "3xFP16" and arithmetic_of("plane_cuda") == THREE_HALF
    assert not family_of("plane_cuda:fp16").is_compiled and not family_of("plane_cuda").is_compiled


def test_one_function_takes_every_weight() -> None:
    """The same kernel, called with other packed weights."""
    weights = [weight_of(LAYER, "slice64c", density) for density in (0.2, 0.5)]
    decisions = {"pixels": 128, "plane": CHANNEL, "groups": 1}
    one, other = (make_kernel("plane_cuda", LAYER, each, TARGET, decisions) for each in weights)
    assert one.func.script() == other.func.script()
    assert one.constants[0].shape[1] < other.constants[0].shape[1]
