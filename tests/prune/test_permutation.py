"""The permutation search: it never loses saliency, finds what was hidden, stays in groups, and repeats itself."""

import numpy as np
import pytest
import torch
from torch import nn

from tvm_sparse import prune
from tvm_sparse.conv.structure import Structure
from tvm_sparse.prune.layers import mask_of
from tvm_sparse.prune.permutation import kept, search_order


@pytest.mark.parametrize("seed", range(12))
def test_it_never_loses_saliency(seed):
    rng = np.random.default_rng(seed)
    groups, length = int(rng.choice([1, 2, 4])), int(rng.choice([4, 8]))
    values = rng.exponential(size=(groups * length * int(rng.integers(1, 5)), 6, 3, 3))
    name = str(rng.choice([f"vector{length}p", f"slice{length}cp", f"slice{length}crp"]))
    amount = float(rng.uniform(0.3, 0.95))
    structure = Structure.named(name)
    order = search_order(values, structure, amount, groups, seed)
    assert kept(values, structure, amount, groups, order) >= kept(values, structure, amount, groups)
    there = np.asarray(order).reshape(groups, -1)
    assert (np.sort(there, axis=1) == np.arange(len(values)).reshape(groups, -1)).all()


@pytest.mark.parametrize("name", ["vector8p", "slice16crp"])
def test_it_finds_hidden_vectors(name):
    """Filters that share their positions were shuffled, with a little noise everywhere."""
    rng = np.random.default_rng(0)
    structure = Structure.named(name)
    length = max(structure.vector, structure.tile)
    blocks = rng.random((64 // length, 16, 3, 1 if structure.slices else 3)) < 0.2
    hidden = np.broadcast_to(blocks, (64 // length, 16, 3, 3)).repeat(length, axis=0)
    values = (hidden * rng.uniform(0.5, 1, (64, 16, 3, 3)) + 0.02 * rng.random((64, 16, 3, 3)))[rng.permutation(64)]
    amount = 1 - hidden.mean()
    best = (values * (values > 0.1)).sum() / values.sum()
    as_they_are, found = (
        kept(values, structure, amount, 1, order) for order in (None, search_order(values, structure, amount))
    )
    assert as_they_are < 0.6 * best and found > 0.999 * best


def test_the_same_seed_finds_the_same():
    values = np.random.default_rng(1).exponential(size=(64, 8, 3, 3))
    structure = Structure.named("vector8p")
    assert search_order(values, structure, 0.8, seed=3) == search_order(values, structure, 0.8, seed=3)


@pytest.mark.parametrize("v", [4, 8, 16, 32])
def test_a_permuted_layer_is_found_and_keeps_more(v):
    torch.manual_seed(0)
    side_by_side, permuted = nn.Conv2d(16, 64, 3), nn.Conv2d(16, 64, 3)
    permuted.load_state_dict(side_by_side.state_dict())
    total = side_by_side.weight.abs().sum().item()
    prune.vector(side_by_side, v, 0.8)
    prune.vector(permuted, v, 0.8, permute=True)
    assert Structure.of(mask_of(permuted)).name == f"vector{v}p"
    assert permuted.weight.abs().sum().item() / total > side_by_side.weight.abs().sum().item() / total
