"""A rule of TVM's that fails on a function leaves it to the next one."""

import pytest
import torch
import tvm
from torch import nn
from tvm.ir import assert_structural_equal
from tvm.relax.backend.cuda import pipeline
from tvm.target import Target

from tvm_sparse.compiler.gpu_loops.default_schedules import default_schedules, schedule_rest
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants

TARGET = Target({"kind": "cuda", "arch": "sm_90"})


class PaddedNorm(nn.Module):
    """A layer norm with padding behind it, as Swin transformers have."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(24)

    def forward(self, x):
        return nn.functional.pad(self.norm(x), (0, 0, 0, 3, 0, 3))


def scheduled(module, x, last):
    """The functions of `module` with `last` in the place of TVM's own schedules."""
    relaxed = fold_constants(ModelSource(module.eval()).relax_module(x))
    with TARGET:
        result = tvm.transform.Sequential([*pipeline.legalize_passes(TARGET)[:-1], *last])(relaxed)
    return [func for _, func in result.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]


def test_what_a_rule_fails_on_is_scheduled():
    x = torch.zeros(1, 4, 4, 24)
    with pytest.raises(Exception, match="bind"):
        scheduled(PaddedNorm(), x, pipeline.legalize_passes(TARGET)[-1:])
    functions = scheduled(PaddedNorm(), x, [default_schedules(), schedule_rest])
    assert functions
    for func in functions:
        assert "tirx.is_scheduled" in func.attrs and "blockIdx.x" in func.script()


@pytest.mark.parametrize("module", [nn.MaxPool2d(2), nn.Softmax(dim=1), nn.AvgPool2d(4), nn.Flatten()])
def test_all_others_are_as_tvm_schedules_them(module):
    x = torch.zeros(2, 8, 8, 8)
    own, tvms = (scheduled(module, x, each) for each in ([default_schedules()], pipeline.legalize_passes(TARGET)[-1:]))
    assert len(own) == len(tvms)
    for each, other in zip(own, tvms, strict=True):
        assert_structural_equal(each, other)
