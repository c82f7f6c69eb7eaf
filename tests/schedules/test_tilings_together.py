"""Tilings that are estimated together are ranked as one after the other."""

import numpy as np
import pytest
from tvm.target import Target

from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cuda.data.space import DataSpace
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.together import either, largest, rounded_up, smallest
from tvm_sparse.scheduling.cuda.slice.space import SliceSpace
from tvm_sparse.target.gpu import gpu_info

GPU = gpu_info(Target("nvidia/nvidia-h100"))
SPECS = (
    ConvSpec(n=1, c=64, h=14, w=14, k=128, r=1, s=1, residual=True),
    ConvSpec(n=4, c=48, h=15, w=15, k=96, r=3, s=3, stride=(2, 2), padding=(1, 1, 1, 1)),
    ConvSpec(n=1, c=512, h=1, w=1, k=16, r=1, s=1),
    ConvSpec(n=2, c=32, h=28, w=28, k=64, r=3, s=3, padding=(1, 1, 1, 1), dtype="float16"),
)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", [SliceSpace, DataSpace])
def test_ranked_alike(kind: type[LibrarySpace], spec: ConvSpec):
    space = kind("own", spec, SparsityPattern.of(normal_weight(spec, 0.2, 0)), GPU)
    alone = [(space.estimated_us(each), each) for each in space.tilings() if not space.obstacle(each)]
    alone.sort(key=lambda each: each[0])
    found = space.ranked
    assert alone or spec.h == 1
    assert [each for _, each in found] == [each for _, each in alone]
    assert [time_us for time_us, _ in found] == pytest.approx([time_us for time_us, _ in alone], rel=1e-12)
    # What kernels are told of a tiling are Python's numbers.
    decided = [vars(each)[name] for _, each in found for name in ("channels", "parts") if name in vars(each)]
    assert not {np.int64, np.float64} & set(map(type, decided)) and (decided or not found)


def test_numbers_stay_numbers():
    assert (largest(1, 2), smallest(1, 2.5), either(0, 1, 2), rounded_up(1.2)) == (2, 1, 2, 2.0)
    some = np.array([1, 5])
    assert largest(some, 3).tolist() == [3, 5] and smallest(some, 3).tolist() == [1, 3]
    assert either(some > 2, some, 0).tolist() == [0, 5]
