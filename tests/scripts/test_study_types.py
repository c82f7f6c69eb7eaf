"""The study's network compiled in each type: what is counted."""

import study_pruning
import study_types
import torch

from tvm_sparse.conv.dtypes import DTYPES


def test_answers_are_counted_in_each_type():
    """Of a network whose answers are far apart all agree; those of float32 are as near as float32 is."""
    torch.manual_seed(0)
    net = study_pruning.network((8, 0)).eval()
    net[-1].weight.data *= 8
    x = torch.randn(2 * study_pruning.BATCH, 1, 8, 8)
    y = net(x).argmax(1)
    y[:32] = (y[:32] + 1) % 10
    found = study_types.compiled_answers(net, x, y, "llvm")
    assert found["torch"]["accuracy"] == 0.75
    for dtype in DTYPES:
        assert found[dtype]["as_torch"] > 0.9 and abs(found[dtype]["accuracy"] - 0.75) < 0.1
        assert sum(found[dtype]["kernels"].values()) == 1
    assert found["float32"]["largest_difference"] < 1e-4 < found["float16"]["largest_difference"] < 0.1
