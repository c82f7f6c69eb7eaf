"""What a search proposes, without measuring."""

import numpy as np

from tvm_sparse.autotune.search.evolutionary_search import HOPELESS, SharedModel, SpaceSearch
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.target.resolve import resolve_target

CUDA = resolve_target(
    '{"kind":"cuda","arch":"sm_90","max_threads_per_block":1024,"max_shared_memory_per_block":232448,'
    '"thread_warp_size":32,"registers_per_block":65536}'
)
# Here many combinations of decisions exceed registers or shared memory.
LARGE = ConvSpec(1, 64, 28, 28, 128, 3, 3, padding=(1, 1, 1, 1))


def test_nothing_hopeless_is_proposed():
    weight = np.where(np.random.default_rng(0).random(LARGE.weight_shape) < 0.1, 1.5, 0).astype(np.float32)
    each = spaces_of(LARGE, SparsityPattern.of(weight), CUDA, ["folded_cuda"])[0][0]
    search = SpaceSearch(each, CUDA, SharedModel(0, own=True), 0, 32, 16)
    estimates = [each.estimate(each.scheduled(decisions)) for decisions in search.propose()]
    assert max(estimates) <= HOPELESS * each.estimate_us
    assert any("estimated" in reason for reason in search.refused)
