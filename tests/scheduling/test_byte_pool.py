"""Max pools of bytes."""

import numpy as np
import pytest
import torch
import tvm

from tvm_sparse.codegen.lowering import build
from tvm_sparse.conv.byte_form import as_fours, fours_shape, of_bytes
from tvm_sparse.scheduling.cpu.byte_pool import max_pool
from tvm_sparse.target.resolve import resolve_target


@pytest.mark.parametrize(
    ("shape", "window", "stride", "before"),
    [
        ((1, 4, 3, 40), (3, 3), (2, 2), (1, 1)),
        ((2, 8, 7, 9), (2, 3), (1, 3), (0, 1)),
        ((1, 4, 5, 5), (5, 5), (1, 1), (2, 2)),
        ((1, 4, 3, 1), (1, 1), (1, 1), (0, 0)),
    ],
)
def test_max_pools(shape, window, stride, before):
    codes = np.random.default_rng(0).integers(0, 256, shape)
    expected = torch.nn.functional.max_pool2d(torch.tensor(codes).double(), window, stride, before).numpy()
    target = resolve_target({"kind": "llvm", "num-cores": 1, "opt-level": 0})
    pool = max_pool(shape, expected.shape, window, stride, before).with_attr("global_symbol", "main")
    x, y = (tvm.runtime.tensor(each) for each in (as_fours(codes, 0), np.zeros(fours_shape(expected.shape), np.int32)))
    build(pool, target)["main"](x, y)
    assert np.array_equal(of_bytes(y.numpy(), 0), expected)
