"""Structure: the kinds of zeros that are found in a mask, that chance makes none, and masks that pruning makes."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import keep_largest, structured_mask, unit_saliency
from tvm_sparse.errors import UsageError

VECTORS = [f"vector{v}" for v in (2, 4, 8, 16, 32, 64)]
SLICES = [f"slice{tile}{kind}" for tile in (16, 32, 64, 128) for kind in ("c", "cr")]
BOTH = ["slice64cr+vector8", "slice32c+vector16", "slice128cr+vector4"]
AMOUNTS = (0.5, 0.9, 0.97)


def saliency(shape, seed=0):
    return np.random.default_rng(seed).random(shape)


def made(name, amount, shape=(256, 64, 3, 3), groups=1, **more):
    return structured_mask(saliency(shape), Structure.named(name), amount, groups, **more)


@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("name", ["unstructured", *VECTORS, *SLICES, *BOTH, "filters"])
def test_what_is_pruned_is_found(name, amount):
    found = Structure.of(made(name, amount))
    wanted = Structure.named(name)
    assert (found.name, found.vector, found.tile, found.slices) == (name, wanted.vector, wanted.tile, wanted.slices)
    assert found.order is None


def test_channels_are_found_as_slices_of_the_largest_tile():
    assert Structure.of(made("channels", 0.5)).name == "slice128c"
    assert Structure.of(made("channels", 0.5, (48, 64, 3, 3))).name == "slice48c"


def test_two_of_four():
    mask = made("2:4", 0.5)
    assert Structure.of(mask).name == "2:4"
    assert (mask.reshape(256, 16, 4, 3, 3).sum(axis=2) == 2).all()


@pytest.mark.parametrize("name", [*VECTORS[1:-1], *SLICES[:-2]])
@pytest.mark.parametrize("groups", [1, 2])
def test_permuted_channels_are_found(name, groups):
    mask = made(name, 0.8, groups=groups)
    order = np.random.default_rng(1).permuted(np.arange(256).reshape(groups, -1), axis=1).ravel()
    found = Structure.of(mask[order], groups)
    assert found.name == f"{name}p"
    there = np.asarray(found.order)
    assert sorted(found.order) == list(range(256))
    assert (there // (256 // groups) == np.arange(256) // (256 // groups)).all(), "it stays within its group"
    assert Structure.of(mask[order][there], groups).name == name


def test_permuted_filters_of_a_1x1_convolution_are_vectors():
    mask = made("vector16", 0.8, (128, 64, 1, 1))
    assert Structure.of(mask).name == "vector16"
    assert Structure.of(mask[np.random.default_rng(0).permutation(128)]).name == "vector16p"


def test_a_vector_spans_no_groups():
    """Three vectors of 32 filters; in two groups of 48 filters the second is cut in halves."""
    mask = (saliency((3, 16, 3, 3)) < 0.3).repeat(32, axis=0)
    assert Structure.of(mask).name == "vector32"
    assert Structure.of(mask, groups=2).name == "vector16"
    assert Structure.of(mask, groups=12).name == "vector8"
    assert Structure.of(mask, groups=96).name == "unstructured"


def test_slices_may_lack_a_few_weights_and_not_many():
    mask = made("slice64c", 0.7)
    nearly, half = (mask & (saliency(mask.shape, 1) < share) for share in (0.98, 0.8))
    assert Structure.of(nearly).name == "slice64c"
    assert Structure.of(half).name == "unstructured"


@settings(max_examples=150)
@given(
    st.integers(16, 96),
    st.integers(4, 40),
    st.sampled_from([(1, 1), (3, 3), (1, 3), (5, 1), (2, 2)]),
    st.floats(0.01, 0.99),
    st.integers(0, 2**31),
)
def test_chance_makes_no_structure(k, c, taps, density, seed):
    c = max(c, -(-16 // (taps[0] * taps[1])))
    mask = np.random.default_rng(seed).random((k, c, *taps)) < density
    assert Structure.of(mask).name in ("unstructured", "dense", "empty")


@settings(max_examples=60)
@given(st.sampled_from((4, 8, 16)), st.floats(0.02, 0.6), st.integers(0, 2**31))
def test_vectors_at_random_places_are_not_in_slices(vector, density, seed):
    mask = (np.random.default_rng(seed).random((128 // vector, 48, 3, 3)) < density).repeat(vector, axis=0)
    assert Structure.of(mask).name == f"vector{vector}"


def test_a_large_mask_takes_little_time():
    mask = saliency((512, 512, 3, 3)) < 0.1
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        Structure.of(mask)
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.05


@pytest.mark.parametrize("name", ["unstructured", *VECTORS, *SLICES, *BOTH, "filters", "channels"])
@given(amount=st.floats(0, 0.999))
@settings(max_examples=20)
def test_the_amount_holds_to_one_unit(name, amount):
    shape = (128, 16, 3, 3)
    mask = made(name, amount, shape)
    wanted, structure = (1 - amount) * mask.size, Structure.named(name)
    unit = {"filters": mask[0].size, "channels": mask[:, 0].size}.get(name, structure.vector)
    if structure.slices and structure.vector == 1:
        unit = structure.tile * (9 if structure.slices == "c" else 3)
    # Slices that are kept may hold fewer vectors than were asked for, by less than one slice.
    slack = structure.tile * 9 if name in BOTH else 0
    assert mask.sum() >= unit
    assert abs(int(mask.sum()) - wanted) <= unit + slack


def test_slices_and_vectors_are_as_sparse_unless_asked_otherwise():
    counts = [
        made("slice64cr+vector8", 0.9, slice_amount=share).reshape(4, 64, 64, 3, 3).any(axis=(1, 4)).mean()
        for share in (None, 0.5, 0.9)
    ]
    np.testing.assert_allclose(counts, [0.1**0.5, 0.5, 0.1], atol=0.01)


def test_the_most_salient_units_stay():
    values = saliency((8, 4, 3, 3))
    mask = keep_largest(values, (4, 1, 3, 3), 3)
    sums = unit_saliency(values, (4, 1, 3, 3))
    kept = mask.reshape(2, 4, 4, 9).all(axis=(1, 3))
    assert kept.sum() == 3 and mask.sum() == 3 * 36
    assert sums[kept[:, :, None, None]].min() > sums[~kept[:, :, None, None]].max()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_of_equal_units_the_first_stay(count):
    values = np.array([2, 1, 3, 1, 1, 2], np.float32).reshape(1, 6, 1, 1)
    order = [2, 0, 5, 1, 3, 4]
    mask = keep_largest(values, (1, 1, 1, 1), count)
    assert np.flatnonzero(mask).tolist() == sorted(order[:count])


def test_an_order_is_taken():
    order = tuple(np.random.default_rng(2).permutation(32).tolist())
    values = saliency((32, 8, 3, 3))
    permuted = Structure("vector8p", vector=8, order=order)
    mask = structured_mask(values, permuted, 0.7)
    side_by_side = structured_mask(values[np.asarray(order)], Structure.named("vector8"), 0.7)
    assert np.array_equal(mask[np.asarray(order)], side_by_side)
    assert Structure.of(mask).name == "vector8p"


@pytest.mark.parametrize(
    ("name", "channels", "fitted"),
    [
        ("vector64", 48, "vector16"),
        ("vector16p", 64, "vector16p"),
        ("slice64cr+vector8", 96, "slice32cr+vector8"),
        ("slice128c", 64, "slice64c"),
        ("vector8p", 7, "unstructured"),
        ("unstructured", 7, "unstructured"),
    ],
)
def test_structures_are_fitted_to_a_layer(name, channels, fitted):
    assert Structure.named(name).fitted(channels).name == fitted


@pytest.mark.parametrize("name", ["", "vector", "vector3", "vector128", "slice0c", "slice64", "slice60c+vector8"])
def test_unknown_names_are_one_sentence(name):
    with pytest.raises(UsageError, match=r"unknown pattern, found .*; allowed: unstructured, vector16"):
        Structure.named(name)


def test_a_few_zeros_make_no_pattern() -> None:
    """As some weights drawn at random have; one in a thousand counts."""
    mask = np.ones((128, 128, 3, 3), bool)
    mask[3, 5, 1, 1] = False
    assert Structure.of(mask).name == "dense"
    mask[3, :, 1, 1] = False
    assert Structure.of(mask).name == "unstructured"
