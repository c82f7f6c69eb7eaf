"""Maps whose neighbours are of several channels are computed so many at a time, and are what they were."""

from functools import partial

import numpy as np
import pytest
import tvm
from built_function import computed
from gpu_functions import emulated
from gpu_functions import scheduled as scheduled_for_gpu
from tvm import relax, te, tirx, topi

from tvm_sparse.compiler.cpu_loops.schedule_interleaved import schedule_interleaved
from tvm_sparse.compiler.gpu_loops.default_schedules import default_schedules
from tvm_sparse.compiler.gpu_loops.schedule_maps import schedule_maps
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.frontend.passes.ranks.moves import interleaved, with_depths
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


@pytest.mark.parametrize("is_interleaved", [True, False])
def test_a_gpu_moves_them_too(is_interleaved):
    """Phases, and the depths that a kernel reads, which reach beyond the volume."""
    array = np.random.default_rng(0).standard_normal((6, 8, 6, 6)).astype(np.float32)
    if is_interleaved:
        move = partial(interleaved, phases=[Phases(Axis(1)), *[Phases(Axis(6), 2, 1, 10)] * 2], groups=1)
        expected = shuffled(array, 2, 1, 10)
    else:
        move = partial(with_depths, volumes=Volumes(3, 3, 3, before=1), groups=2)
        padded = np.pad(array.reshape(2, 3, 2, 4, 6, 6), [(0, 0), (1, 1), *[(0, 0)] * 4])
        expected = np.concatenate([padded[:, tap : tap + 3] for tap in range(3)], 3).reshape(6, 24, 6, 6)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(array.shape, "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(builder.call_te(move, x, primfunc_name_hint="move")))
    (func,) = scheduled_for_gpu(builder.get(), tvm.transform.Sequential([schedule_maps, default_schedules()]))
    found, source = emulated(func, {func.params[0].name: array}, expected.shape)
    assert np.array_equal(found, expected)
    # Two neighbours, each from a channel of its own, are written at once.
    assert ("*(float2*)" in source) == is_interleaved
