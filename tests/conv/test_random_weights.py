"""Random weights of a density; those that are like another are tested with `logs.validate`, which makes them."""

import numpy as np
import pytest

from tvm_sparse.conv.random_weights import normal_weight, weight_like
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask

SPEC = ConvSpec(1, 24, 8, 8, 40, 3, 3, groups=2)


def test_the_largest_are_kept_and_the_seed_decides():
    dense, pruned = normal_weight(SPEC, 1.0, 3), normal_weight(SPEC, 0.1, 3)
    assert (pruned.shape, pruned.dtype) == (SPEC.weight_shape, np.float32)
    assert np.count_nonzero(pruned) == round(0.1 * pruned.size)
    assert np.abs(dense[pruned == 0]).max() <= np.abs(pruned[pruned != 0]).min()
    assert (pruned[pruned != 0] == dense[pruned != 0]).all()
    assert (normal_weight(SPEC, 1.0, [3, 1]) != dense).any()
    # Outputs of normal inputs have variance 1.
    assert 0.9 < (dense**2).sum(axis=(1, 2, 3)).mean() < 1.1
    assert not normal_weight(SPEC, 0, 3).any()


@pytest.mark.parametrize("name", ["slice32cr", "slice64c+vector8", "filters", "slice16cp", "vector8p", "vector64"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_weight_like_another_has_its_structure(name, groups):
    spec = ConvSpec(1, 32, 6, 6, 128, 3, 3, groups=groups)
    wanted, values = Structure.named(name), np.random.default_rng(0).random(spec.weight_shape)
    mask = structured_mask(values, wanted, 0.8, groups)
    if wanted.is_permuted:
        mask = mask.reshape(groups, -1, *mask.shape[1:])[:, np.random.default_rng(1).permutation(128 // groups)]
    pattern = SparsityPattern.of(mask.reshape(spec.weight_shape).astype(np.float32), groups)
    found = SparsityPattern.of(weight_like(spec, pattern), groups)
    assert pattern.structure == found.structure == name
    assert found.density == pytest.approx(0.2, abs=0.01)
