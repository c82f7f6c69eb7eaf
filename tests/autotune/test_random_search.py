"""Random draws: valid, distinct, uniform, the same for the same seed; for a CPU, and for CUDA without a GPU."""

from collections import Counter

import numpy as np
import pytest

from tvm_sparse.autotune.search import random_search
from tvm_sparse.autotune.search.evolutionary_search import HOPELESS, SharedModel, SpaceSearch
from tvm_sparse.autotune.search.random_search import RandomSearch
from tvm_sparse.autotune.search.trial_history import key_of_proposal
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.target.resolve import resolve_target

# Which decisions a CPU's space refuses depends on its vectors.
CPU = resolve_target('{"kind":"llvm","mcpu":"x86-64-v3","num-cores":1}')
CUDA = resolve_target(
    '{"kind":"cuda","arch":"sm_90","max_threads_per_block":1024,"max_shared_memory_per_block":232448,'
    '"thread_warp_size":32,"registers_per_block":65536}'
)
SMALL = ConvSpec(1, 8, 12, 12, 8, 3, 3, padding=(1, 1, 1, 1))
# Here many combinations of decisions exceed registers or shared memory.
LARGE = ConvSpec(1, 64, 28, 28, 128, 3, 3, padding=(1, 1, 1, 1))


def spaces(spec, target, *schedules):
    weight = np.where(np.random.default_rng(0).random(spec.weight_shape) < 0.1, 1.5, 0).astype(np.float32)
    return spaces_of(spec, SparsityPattern.of(weight), target, list(schedules))[0]


def keys(proposals):
    return [key_of_proposal(*each) for each in proposals]


@pytest.mark.parametrize(
    ("spec", "target", "schedules"),
    [(SMALL, CPU, ("folded_cpu", "generated_cpu", "csr_cpu")), (LARGE, CUDA, ("folded_cuda", "csr_cuda"))],
    ids=["llvm", "cuda"],
)
def test_draws_are_valid_distinct_and_repeatable(spec, target, schedules):
    found = spaces(spec, target, *schedules)
    search = RandomSearch(found, target, 3)
    drawn = [*search.propose(7), *search.propose(13)]
    assert len(set(keys(drawn))) == len(drawn) == 20
    assert {each.schedule for each, _ in drawn} == set(schedules)
    assert search.refused
    for each, decisions in drawn:
        assert each.obstacle_of(each.scheduled(decisions)) == ""
    assert keys(RandomSearch(found, target, 3).propose(20)) == keys(drawn)
    assert keys(RandomSearch(found, target, 4).propose(20)) != keys(drawn)


def test_a_guided_search_proposes_nothing_hopeless():
    each = spaces(LARGE, CUDA, "folded_cuda")[0]
    search = SpaceSearch(each, CUDA, SharedModel(0, own=True), 0, 32, 16)
    estimates = [each.estimate(each.scheduled(decisions)) for decisions in search.propose()]
    assert max(estimates) <= HOPELESS * each.estimate_us
    assert any("estimated" in reason for reason in search.refused)


@pytest.mark.exhaustive
def test_every_candidate_is_as_likely_as_another(monkeypatch):
    """Of a small space, the first draws of many searches: each candidate comes about as often as the others."""
    monkeypatch.setattr(random_search, "MAX_DRAWS", 200)
    only = spaces(SMALL, CUDA, "csr_cuda")[:1]
    everything, draws = set(keys(RandomSearch(only, CUDA, 0).propose(1000))), 60
    assert 4 <= len(everything) <= 50
    counts = Counter(keys(RandomSearch(only, CUDA, seed).propose(1))[0] for seed in range(draws))
    assert set(counts) == everything
    expected, freedom = draws / len(everything), len(everything) - 1
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    # Five standard deviations above its mean.
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.exhaustive
def test_every_space_is_as_likely_as_another():
    found = spaces(LARGE, CUDA, "folded_cuda")
    drawn = RandomSearch(found, CUDA, 1).propose(30 * len(found))
    counts = Counter(each.name for each, _ in drawn)
    assert set(counts) == {each.name for each in found}
    assert max(counts.values()) < 2 * min(counts.values())


def test_exhausted_spaces_give_nothing(monkeypatch):
    monkeypatch.setattr(random_search, "MAX_DRAWS", 100)
    search = RandomSearch(spaces(SMALL, CUDA, "csr_cuda")[:2], CUDA, 0)
    drawn = search.propose(1000)
    assert len(set(keys(drawn))) == len(drawn) < 100
    assert search.propose(1) == []
    assert RandomSearch([], CUDA, 0).propose(4) == []
