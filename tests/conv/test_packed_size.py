"""Bytes of packed weights, counted by hand."""

import numpy as np
import pytest

from tvm_sparse.conv.packed_size import packed_bytes
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask

SHAPE = (64, 32, 3, 3)
SIZE = 64 * 32 * 9


@pytest.mark.parametrize(
    ("name", "amount", "expected"),
    [
        # Values and places, and where each row of units begins.
        ("unstructured", 0.75, SIZE // 4 * 8 + 65 * 4),
        ("vector16", 0.75, SIZE // 4 * 4 + SIZE // 4 // 16 * 4 + 5 * 4),
        ("slice32c", 0.75, SIZE // 4 * 4 + 16 * 4 + 3 * 4),
        ("slice32cr", 0.75, SIZE // 4 * 4 + 48 * 4 + 3 * 4),
        ("2:4", 0.5, SIZE // 2 * 4 + SIZE // 2 * 2 // 8),
        ("filters", 0.75, SIZE // 4 * 4 + 64 * 4),
    ],
)
def test_bytes_by_hand(name, amount, expected):
    mask = structured_mask(np.random.default_rng(0).random(SHAPE), Structure.named(name), amount)
    found = Structure.of(mask)
    assert found.name == name
    assert packed_bytes(mask, found) == expected


def test_dense_has_values_only_and_a_permutation_its_order():
    mask = np.ones(SHAPE, bool)
    assert packed_bytes(mask, Structure.of(mask)) == 4 * SIZE
    vectors = structured_mask(np.random.default_rng(0).random(SHAPE), Structure.named("vector16"), 0.75)
    moved = vectors[np.random.default_rng(1).permutation(64)]
    sizes = [packed_bytes(each, Structure.of(each)) for each in (vectors, moved)]
    assert Structure.of(moved).name == "vector16p"
    assert sizes[1] == sizes[0] + 4 * 64
