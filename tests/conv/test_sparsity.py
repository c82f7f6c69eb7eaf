"""SparsityPattern: the structure it finds, and what its digests depend on."""

import numpy as np
import pytest

from tvm_sparse.conv.codes import as_codes, holds_codes
from tvm_sparse.conv.sparsity import SparsityPattern, digest


def random_mask(shape, density, seed=0):
    return np.random.default_rng(seed).random(shape) < density


def pruned(mask, seed=0):
    return np.where(mask, np.random.default_rng(seed).uniform(0.5, 1, mask.shape), 0).astype(np.float32)


def two_of_four(shape):
    """A mask with exactly 2 of every 4 input channels."""
    order = np.random.default_rng(1).random((shape[0], shape[1] // 4, 4, *shape[2:])).argsort(axis=2)
    return (order < 2).reshape(shape)


SHAPE = (32, 16, 3, 3)


@pytest.mark.parametrize(
    ("mask", "structure"),
    [
        (np.ones(SHAPE, bool), "dense"),
        (np.zeros(SHAPE, bool), "empty"),
        (random_mask(SHAPE, 0.1), "unstructured"),
        (random_mask(SHAPE, 0.9), "unstructured"),
        (np.repeat(random_mask((1, 16, 3, 3), 0.3), 32, axis=0), "vector32"),
        (np.repeat(random_mask((4, 16, 3, 3), 0.3), 8, axis=0), "vector8"),
        (np.repeat(random_mask((16, 16, 3, 3), 0.3), 2, axis=0), "vector2"),
        (two_of_four(SHAPE), "2:4"),
        (random_mask((3, 5, 3, 3), 0.5), "unstructured"),
    ],
)
def test_structure_is_found(mask, structure):
    assert SparsityPattern.of(pruned(mask)).structure == structure


def test_counts():
    mask = random_mask(SHAPE, 0.5)
    mask[[1, 5, 7]] = False
    mask[:, [2, 3]] = False
    pattern = SparsityPattern.of(pruned(mask))
    assert (pattern.size, pattern.nnz) == (mask.size, mask.sum())
    assert pattern.density == mask.mean()
    assert (pattern.dead_filters, pattern.dead_channels) == (3, 2)


def test_no_vector_spans_groups():
    weight = pruned(np.repeat(random_mask((1, 16, 3, 3), 0.3), 32, axis=0))
    assert [SparsityPattern.of(weight, groups).structure for groups in (2, 4, 32)] == [
        "vector16",
        "vector8",
        "unstructured",
    ]


def test_digests_follow_mask_and_values():
    mask = random_mask(SHAPE, 0.2)
    one, other = SparsityPattern.of(pruned(mask, 1)), SparsityPattern.of(pruned(mask, 2))
    assert one.mask_digest == other.mask_digest
    assert one.value_digest != other.value_digest
    moved = SparsityPattern.of(pruned(np.roll(mask, 1)))
    assert moved.mask_digest != one.mask_digest
    assert SparsityPattern.of(pruned(mask, 1)) == one


def test_negative_zero_is_zero():
    weight = pruned(random_mask(SHAPE, 0.3))
    assert SparsityPattern.of(np.where(weight == 0, np.float32(-0.0), weight)) == SparsityPattern.of(weight)


def test_digest_depends_on_shape_and_dtype_and_not_on_layout():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert digest(array) == digest(np.asfortranarray(array))
    assert len({digest(array), digest(array.reshape(4, 3)), digest(array.view(np.int32))}) == 3


def test_fours_of_channels_are_counted_in_codes_alone():
    weight = np.zeros((2, 8, 1, 2), np.float32)
    weight[0, 1, 0, 0], weight[0, 2, 0, 0], weight[0, 4, 0, 0], weight[1, 7, 0, 1] = 3, -5, 1, 255
    pattern = SparsityPattern.of(weight)
    assert pattern.fours == 3 and SparsityPattern(**pattern.to_json()) == pattern
    # What is behind the last channel is zero.
    assert SparsityPattern.of(weight[:, :6]).fours == 2
    for other in (weight / 2, weight * 2, np.sign(weight)):
        assert SparsityPattern.of(other).fours == 0 and "fours" not in SparsityPattern.of(other).to_json()
    codes = as_codes(weight / 7)
    assert holds_codes(codes) and ((codes != 0) == (weight != 0)).all() and np.abs(codes).max() == 127
