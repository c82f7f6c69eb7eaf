"""Maps whose neighbours are of several channels are computed so many at a time, and are what they were."""

import numpy as np
import pytest
import tvm
from built_function import computed
from tvm import te, tirx, topi

from tvm_sparse.compiler.cpu_loops.schedule_interleaved import schedule_interleaved
from tvm_sparse.frontend.passes.ranks.moves import interleaved
from tvm_sparse.frontend.passes.ranks.phases import Axis, Phases


def scheduled(*tensors: te.Tensor) -> tirx.PrimFunc:
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    return schedule_interleaved(tvm.IRModule({"main": func}))["main"]


def shuffled(array: np.ndarray, stride: int, shift: int, size: int) -> np.ndarray:
    """What NumPy makes of phases (N, S * S * K, H, W)."""
    n, _, h, w = array.shape
    parts = array.reshape(n, stride, stride, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, -1, h * stride, w * stride)[:, :, shift : shift + size, shift : shift + size]


@pytest.mark.parametrize(
    ("stride", "shift", "size", "threads"), [(2, 0, 12, 1), (2, 1, 10, 3), (3, 2, 16, 1), (4, 0, 23, 3)]
)
def test_phases_interleave(stride, shift, size, threads):
    """Whole turns or not, from whichever phase, and with what is computed of the result."""
    phases = [Phases(Axis(1)), *[Phases(Axis(6), stride, shift, size)] * 2]
    array = np.random.default_rng(0).standard_normal((2, 16 * stride**2, 6, 6)).astype(np.float32)
    maps = te.placeholder(array.shape, name="maps")
    func = scheduled(maps, topi.nn.relu(interleaved(maps, phases, 1)))
    assert "T.unroll" in func.script()
    expected = np.maximum(shuffled(array, stride, shift, size), 0)
    assert np.array_equal(computed(func, array, threads=threads), expected)


def test_what_goes_through_no_channels_is_left_alone():
    x = te.placeholder((2, 3, 4), name="x")
    for result in (topi.nn.relu(x), topi.transpose(x, (2, 1, 0)), topi.sum(x, 2)):
        assert "tirx.is_scheduled" not in (scheduled(x, result).attrs or {})
