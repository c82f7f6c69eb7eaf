"""Kernels on tensor cores for filters that share their zeros, emulated, against the float64 reference."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from parameters import random_seeds
from random_convolutions import Case, random_slice_case, vector_weight
from slice_emulator import run
from tvm.ir import Call, StringImm
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm.tirx import IntImm

from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import stored
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules import slice_cuda
from tvm_sparse.schedules.lookup import arithmetic_of, find_space, make_kernel, spaces_of
from tvm_sparse.scheduling.cuda.slice.kernels import LIBRARIES
from tvm_sparse.scheduling.cuda.slice.packing import packed, without_conflicts
from tvm_sparse.scheduling.cuda.slice.space import SliceSpace
from tvm_sparse.scheduling.cuda.slice.tiling import N_TILES, SliceTiling
from tvm_sparse.scheduling.cuda.slice.time import Positions
from tvm_sparse.scheduling.family import TF32_VARIANT
from tvm_sparse.scheduling.kernel import apply_decisions

TARGET = Target({"kind": "cuda", "arch": "sm_90"})
LAYER = ConvSpec(2, 16, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True)


def check(case: Case, space: SliceSpace, tiling: SliceTiling) -> None:
    """Compare a tiling of `space` with the reference."""
    decisions = {name: getattr(tiling, name) for name in space.choices}
    (weights,) = space.packed(case.weight, decisions)
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    error = case.error(arguments, run(tiling, weights, arguments), arithmetic_of(space.name))
    assert error <= 1, f"{error}: {space.name}, {tiling}, {case!r}"


def met_in(seed: int) -> set[object]:
    """What the kernels of a random case have of what the test looks for; they are right."""
    rng, met = random.Random(seed), set()
    case = random_slice_case(rng.choice)
    pattern = SparsityPattern.of(case.weight, case.spec.groups)
    for exact in spaces_of(case.spec, pattern, TARGET, ["slice_cuda"])[0]:
        assert isinstance(exact, SliceSpace)
        stages = rng.choice((1, 2, 3))
        rounded = slice_cuda.named(case.spec, pattern, TARGET, TF32_VARIANT) if seed % 7 == 0 else None
        space = rounded if isinstance(rounded, SliceSpace) else exact
        tiling = replace(rng.choice(exact.ranked)[1], stages=stages, tf32=space.tf32)
        if space.positions.shared_bytes(tiling) > space.gpu.block_shared_bytes:
            continue
        check(case, space, tiling)
        assert tiling.kernel.format(0) in LIBRARIES[tiling.multiplied].names
        met |= {(tiling.m_tiles, tiling.n_tiles), f"{stages} stages", f"{tiling.k_warps} for positions"}
        met |= {tiling.multiplied, *(["images"] if tiling.images > 1 else [])}
    return met


@random_seeds((5, 9, 10, 11, 13, 19, 26, 27, 28, 31, 49, 52, 53), 56)
def test_random_convolutions_match_the_reference(seeds: Iterable[int]) -> None:
    """Tilings at random: several chunks, rings of two and three buffers, positions divided among warps, all kernels."""
    met = set().union(*map(met_in, seeds))
    every = {(m, n) for m, some in N_TILES.items() for n in some}
    others = {
        "1 stages",
        "2 stages",
        "3 stages",
        "1 for positions",
        "2 for positions",
        "images",
        FLOAT32,
        TF32_VARIANT,
        FLOAT16,
        BFLOAT16,
    }
    assert met >= others and len(every & met) >= 12, every - met


@pytest.mark.parametrize(
    ("taps", "padding", "dtype"), [(7, (3, 3, 3, 3), FLOAT16), (3, (1, 1, 1, 1), BFLOAT16), (4, (0, 2, 1, 2), FLOAT16)]
)
def test_every_other_pixel_is_read_in_words(taps: int, padding: tuple[int, int, int, int], dtype: str) -> None:
    """In half precision, exactly; infinity reaches no output beside those that read it, which a word might."""
    spec = ConvSpec(2, 3, 17, 20, 32, taps, taps, stride=(2, 2), padding=padding, bias=True, dtype=dtype)
    weight = np.random.default_rng(1).integers(1, 4, spec.weight_shape).astype(np.float32)
    space = find_space("slice_cuda", spec, SparsityPattern.of(weight), TARGET)
    assert isinstance(space, SliceSpace)
    arguments = reference.random_arguments(spec, 3, integers=True)
    arguments["x"][0, 1, 8, 8:10] = np.inf, 1
    expected = reference.reference(spec, weight=weight, **arguments).value
    for m_tiles in (1, 2):
        tiling = next(tiling for _, tiling in space.ranked if tiling.m_tiles == m_tiles)
        (weights,) = space.packed(weight, {name: getattr(tiling, name) for name in space.choices})
        assert weights.reshape(len(weights), -1)[:, tiling.first_channel - 2].all()
        y = run(tiling, weights, arguments)
        assert np.isinf(expected).any() and np.array_equal(np.isfinite(y), np.isfinite(expected))
        np.testing.assert_array_equal(y[np.isfinite(y)], stored(expected[np.isfinite(y)], dtype))
    few = weight * (np.arange(taps) == 1)
    (weights,) = space.packed(few.astype(np.float32), {name: getattr(tiling, name) for name in space.choices})
    assert not weights.reshape(len(weights), -1)[:, tiling.first_channel - 2].any()
    nothing = SparsityPattern.of(np.zeros(spec.weight_shape, np.float32))
    assert isinstance(find_space("slice_cuda", spec, nothing, TARGET).starts_us[0], float)


@pytest.mark.parametrize("n_tiles", [1, 4, 7, 8])
def test_eight_pixels_of_a_filter_are_written_together(n_tiles: int) -> None:
    """In half precision, where rows are whole eights; groups that are not four, or beyond the last row, apart."""
    spec = replace(LAYER, h=5, w=24, dtype=FLOAT16)
    weight = vector_weight(spec, 32, 0.2, 1, True)
    space = find_space("slice_cuda", spec, SparsityPattern.of(weight), TARGET)
    assert isinstance(space, SliceSpace)
    tiling = next(tiling for _, tiling in space.ranked if tiling.n_tiles == n_tiles)
    assert tiling.aligned == 8
    check(Case(spec, weight, 1, integers=True), space, tiling)


def test_agrees_with_unstructured_arithmetic_exactly() -> None:
    """The same whole numbers in vectors of 16, 32 and 64 filters, whichever a warp takes at a time, and permuted."""
    arguments = reference.random_arguments(LAYER, 2, integers=True)
    for length in (16, 32, 64):
        weight = vector_weight(LAYER, length, 0.2, length, True)
        order = np.random.default_rng(1).permutation(LAYER.k)
        for each in (weight, weight[order]):
            (space,) = slice_cuda.spaces(LAYER, SparsityPattern.of(each), TARGET)
            assert isinstance(space, SliceSpace)
            expected = reference.reference(LAYER, weight=each, **arguments).value
            for m_tiles in {tiling.m_tiles for _, tiling in space.ranked}:
                tiling = next(tiling for _, tiling in space.ranked if tiling.m_tiles == m_tiles)
                decisions = {name: getattr(tiling, name) for name in space.choices}
                (weights,) = space.packed(each, decisions)
                np.testing.assert_array_equal(run(tiling, weights, arguments), expected)


def test_the_relu_keeps_nan() -> None:
    """Of a filter whose bias is none."""
    spec = ConvSpec(2, 16, 8, 8, 32, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
    weight, arguments = vector_weight(spec, 16, 0.3, 1, False), reference.random_arguments(spec, 1)
    arguments["bias"][5] = np.nan
    (space,) = slice_cuda.spaces(spec, SparsityPattern.of(weight), TARGET)
    assert isinstance(space, SliceSpace)
    (weights,) = space.packed(weight, space.starts()[0])
    y = run(space.ranked[0][1], weights, arguments)
    assert np.isnan(y[:, 5]).all() and np.isnan(y).sum() == y[:, 5].size


def test_an_infinite_input_is_read_only_where_a_filter_has_a_weight() -> None:
    """A k-step that is not full is filled up with what it reads anyway."""
    spec = ConvSpec(1, 8, 8, 8, 16, 1, 1)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[:, 3] = 1
    x = np.ones(spec.input_shape, np.float32)
    x[0, 0] = np.inf
    (space,) = slice_cuda.spaces(spec, SparsityPattern.of(weight), TARGET)
    assert isinstance(space, SliceSpace)
    (weights,) = space.packed(weight, space.starts()[0])
    assert (run(space.ranked[0][1], weights, {"x": x}) == 1).all()


def accesses(spec: ConvSpec, density: float, ordered: bool) -> float:
    """Accesses to shared memory a read of 8 pixels at 4 positions, of 32 channels; 1 without bank conflicts."""
    tiling = SliceTiling(spec, 1, 7, 1, 4, 1, 32, 1)
    places = np.flatnonzero(np.random.default_rng(0).random(32 * 9) < density)
    taps = np.array([tiling.offset(r, s) for r in range(3) for s in range(3)])
    size, stride = tiling.element_bytes, spec.stride[1]
    offsets = size * (places // 9 * tiling.channel_pitch + taps[places % 9])
    order = without_conflicts(offsets, size, stride)
    assert sorted(order) == list(range(places.size))
    found = offsets[order] if ordered else offsets
    reads = found[: places.size // 4 * 4].reshape(-1, 4, 1) + size * stride * np.arange(8)
    return float(np.mean([np.bincount(np.unique(read // 4) % 32).max() for read in reads]))


def test_positions_are_read_with_few_bank_conflicts() -> None:
    """With none where all are there; where few are, those of a column must be of different rows and channels."""
    for dtype in (FLOAT32, FLOAT16):
        spec = ConvSpec(1, 32, 28, 28, 32, 3, 3, padding=(1, 1, 1, 1), dtype=dtype)
        assert accesses(spec, 1.0, True) == 1
        assert accesses(spec, 0.2, True) < 0.95 * accesses(spec, 0.2, False)
        # Of a stride of 2 every other column has the even banks alone.
        assert accesses(replace(spec, stride=(2, 2)), 1.0, True) < 1.7


def test_what_no_filter_of_a_block_uses_is_not_read() -> None:
    """Of slices over channels a block stages those that are left, and the weights are as many as there are."""
    spec = ConvSpec(1, 64, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1))
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[:, [3, 17, 40]] = 1
    tiling = SliceTiling(spec, 2, 7, 1, 4, 1, 4, 1)
    rows = packed(weight, tiling)
    assert len(rows) == tiling.k_tiles
    assert (rows.reshape(len(rows), -1)[:, tiling.first_channel - 1 :][:, :4] == [3, 3, 17, 40]).all()
    # 27 positions are four k-steps of eight.
    assert rows.shape[1] == tiling.first_step + 4 * tiling.step_units


def test_one_function_serves_every_weight_of_a_shape() -> None:
    """Nothing of a weight is in the code, not even how many positions it has."""
    weights = [vector_weight(LAYER, 32, density, 1, True) for density in (0.1, 0.4)]
    decisions = find_space("slice_cuda", LAYER, SparsityPattern.of(weights[1]), TARGET).starts()[0]
    one, other = (make_kernel("slice_cuda", LAYER, each, TARGET, decisions) for each in weights)
    assert one.func.script() == other.func.script()
    assert one.constants[0].shape[1] < other.constants[0].shape[1]


def test_what_it_is_not_for_is_said() -> None:
    """Other numbers of filters, and older GPUs."""
    can_serve = slice_cuda.FAMILY.can_serve
    pattern = SparsityPattern.of(vector_weight(LAYER, 16, 0.1, 0, True))
    assert "groups have 40 filters each, and only multiples of 16 are served" in can_serve(
        replace(LAYER, k=40), pattern, TARGET
    )
    assert "of a single pixel tensor cores compute eight" in can_serve(ConvSpec(1, 64, 1, 1, 64, 1, 1), pattern, TARGET)
    assert "has no dependent launches" in can_serve(LAYER, pattern, Target({"kind": "cuda", "arch": "sm_86"}))


def test_decisions_that_do_not_fit_together_are_refused() -> None:
    """By the rule that they break."""
    weight = vector_weight(LAYER, 16, 0.1, 0, True)
    space = find_space("slice_cuda", LAYER, SparsityPattern.of(weight), TARGET)
    for wrong, cause in (
        ({"n_tiles": 1, "pixel_warps": 1}, "a row is 2 groups of 8 pixels, of which a block has 1"),
        ({"pixel_warps": 8, "k_warps": 8}, "64 warps, at most 8"),
    ):
        with pytest.raises(BuildError, match=cause):
            apply_decisions(space, weight, {**space.starts()[0], "filter_warps": 1, **wrong})


def test_metaschedule_does_not_drop_decisions() -> None:
    """A trace without the steps that nothing depends on holds them all."""
    space = find_space("slice_cuda", LAYER, SparsityPattern.of(vector_weight(LAYER, 16, 0.1, 0, True)), TARGET)
    schedule = Schedule(space.func, debug_mask="none")
    space.scheduled(space.starts()[3]).trace.simplified(True).apply_to_schedule(schedule, False)
    assert space.decisions_of(schedule) == space.starts()[3]


def test_patterns_say_how_many_positions_there_are() -> None:
    """Of filters that are alike, of others together, and of channels that any of them uses."""
    spec = ConvSpec(1, 256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1))
    tiling = SliceTiling(spec, 2, 7, 2, 4, 1, 16, 2)
    for name in ("unstructured", "vector8", "vector32", "vector32p", "slice64c", "slice64cr", "slice32cr+vector16"):
        weight = normal_weight(spec, 1.0, 0)
        if name == "unstructured":
            weight = normal_weight(spec, 0.1, 0)
        else:
            structure = Structure.named(name)
            if structure.is_permuted:
                structure = replace(structure, order=tuple(np.random.default_rng(0).permutation(spec.k).tolist()))
            weight *= structured_mask(np.abs(weight), structure, 0.9)
        pattern = SparsityPattern.of(weight)
        assert pattern.structure == name
        positions, rows = Positions.of(spec, pattern), packed(weight, tiling)
        heads = rows.reshape(tiling.k_tiles, -1, rows[0].size)[..., : tiling.first_channel]
        steps = positions.work(tiling).steps * tiling.filter_warps
        assert steps == pytest.approx(heads[..., 2].sum(axis=1).mean(), rel=0.2)
        assert positions.live_channels(tiling.filters) == pytest.approx(heads[..., 4].sum(axis=1).mean(), rel=0.1)
        assert positions.shared_bytes(tiling) == pytest.approx(tiling.shared_bytes(9, rows.shape[1]), rel=0.35)


def test_a_kernel_always_asks_for_the_same_shared_memory() -> None:
    """TVM tells CUDA once how much a kernel may ask for, so each size has a copy; all of them are in the library."""
    found: dict[str, set[int]] = {}
    for channels, density in ((16, 1.0), (64, 0.1), (64, 1.0), (256, 0.1)):
        spec = replace(LAYER, c=channels)
        weight = vector_weight(spec, 16, density, 0, True)
        space = find_space("slice_cuda", spec, SparsityPattern.of(weight), TARGET)
        for decisions in space.starts():
            called: list[Call] = []
            tvm_ffi.structural_walk(
                make_kernel("slice_cuda", spec, weight, TARGET, decisions).func.body, (Call, called.append)
            )
            for call in called:
                if isinstance(call.args[0], StringImm) and isinstance(call.args[-1], IntImm):
                    found.setdefault(call.args[0].value, set()).add(int(call.args[-1]))
    assert {len(each) for each in found.values()} == {1}
    sizes = sorted({size for each in found.values() for size in each})
    assert sizes == [76800, 115712, 232448]
    assert {name.split("_")[2] for name in found} == {"slice1", "slice2", "slice3"}
