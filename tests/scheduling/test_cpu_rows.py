"""What of the space of folded CPU kernels is not worth a trial."""

import numpy as np

from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import folded_cpu
from tvm_sparse.target.resolve import resolve_target

AVX2 = resolve_target('{"kind":"llvm","mcpu":"x86-64-v3","num-cores":1}')


def test_code_in_too_many_blocks_is_refused() -> None:
    """LLVM took more than 90 s for 8,192 of them; defaults have few."""
    spec = ConvSpec(1, 512, 28, 28, 128, 1, 1)
    pattern = SparsityPattern.of(normal_weight(spec, 0.1, 0).astype(np.float32))
    (space,) = (each for each in folded_cpu.spaces(spec, pattern, AVX2) if each.variant == "rows4x28-direct")
    assert space.refusal(space.scheduled()) == ""
    many = space.scheduled({"channels": 4, "filters": 2, "row_groups": 7, "vectors": [7, 2, 1]})
    assert space.refusal(many) == "8192 blocks of assembly, at most 2048"
