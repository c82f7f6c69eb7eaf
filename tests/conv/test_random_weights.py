"""Random weights of a density; those that are like another are tested with `logs.validate`, which makes them."""

import numpy as np

from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec

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
