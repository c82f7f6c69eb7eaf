"""What TVM schedules for no GPU would run on the CPU and read the GPU's memory; here its GPU code runs on the CPU."""

import numpy as np
import pytest
import torch
import tvm
from cuda_emulator import build_source, emulate
from torch import nn
from tvm.relax.backend.cuda import pipeline
from tvm.target import Target

from tvm_sparse.compiler.gpu_loops.default_schedules import schedule_rest
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.errors import BuildError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants

TARGET = Target({"kind": "cuda", "arch": "sm_90"})


def pooling(shape, size, passes=()):
    """The function of an adaptive average pooling behind TVM's own schedules and `passes`."""
    relaxed = fold_constants(ModelSource(nn.AdaptiveAvgPool2d(size).eval()).relax_module(torch.zeros(shape)))
    with TARGET:
        result = tvm.transform.Sequential([*pipeline.legalize_passes(TARGET), *passes])(relaxed)
    (func,) = (each for _, each in result.functions_items() if isinstance(each, tvm.tirx.PrimFunc))
    return func


@pytest.mark.parametrize(("shape", "size"), [((2, 5, 1, 3), (6, 7)), ((1, 3, 7, 5), (3, 2)), ((40, 4, 13, 13), (6, 6))])
def test_windows_of_any_size(shape, size):
    func = pooling(shape, size, [schedule_rest])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = nn.functional.adaptive_avg_pool2d(x.double(), size).numpy()
    taken, out = func.params
    y = np.full(expected.shape, np.nan, np.float32)
    source, launches = build_source(func.with_attr("global_symbol", "main"), TARGET)
    assert launches
    emulate(source, launches, {taken.name: x.numpy(), out.name: y})
    assert relative_difference(y, expected) < 1e-6


def test_what_tvm_schedules_stays():
    """A window that divides the map has a schedule of TVM's, others have none."""
    before = pooling((2, 8, 32, 32), 1)
    tvm.ir.assert_structural_equal(pooling((2, 8, 32, 32), 1, [schedule_rest]), before)
    assert "tirx.is_scheduled" not in pooling((2, 5, 1, 3), (6, 7)).attrs


RUNNING_SUM = """
@T.prim_func(s_tir=True)
def running_sum(x: T.Buffer((9,), "float32"), y: T.Buffer((9,), "float32")):
    T.func_attr({"global_symbol": "running_sum"})
    for i in range(9):
        with T.sblock("sum"):
            at = T.axis.opaque(9, i)
            y[at] = T.if_then_else(at == 0, T.float32(0), y[at - 1]) + x[at]
"""


def test_what_nobody_can_schedule_is_said():
    """Instead of code for the CPU; what computes shapes belongs there."""
    running_sum = tvm.script.from_source(RUNNING_SUM)
    with pytest.raises(BuildError, match="there is no schedule of running_sum for a GPU; compile for llvm"):
        schedule_rest(tvm.IRModule({"running_sum": running_sum}))
    of_shapes = tvm.IRModule({"running_sum": running_sum.with_attr("tirx.is_host_func", True)})
    tvm.ir.assert_structural_equal(schedule_rest(of_shapes), of_shapes)
