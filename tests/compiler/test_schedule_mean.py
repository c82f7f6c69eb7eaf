"""Means over an image's pixels have a schedule of their own on a GPU; here their code runs on the CPU."""

import pytest
import torch
from gpu_functions import emulated, scheduled
from torch import nn

from tvm_sparse.compiler.gpu_loops.schedule_mean import schedule_mean
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants


def with_means(module, x):
    """The functions of `module` that the pass has scheduled."""
    return scheduled(fold_constants(ModelSource(module).relax_module(x)), schedule_mean)


@pytest.mark.parametrize("shape", [(2, 12, 7, 7), (3, 5, 4, 4), (1, 9, 9, 15)])
def test_means_of_all_pixels(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    (func,) = with_means(nn.AdaptiveAvgPool2d(1).eval(), x)
    y, _ = emulated(func, {func.params[0].name: x.numpy()}, (*shape[:2], 1, 1))
    assert relative_difference(y, x.double().mean((2, 3), keepdim=True).numpy()) < 1e-6


@pytest.mark.parametrize(
    "module", [nn.AvgPool2d(2), nn.MaxPool2d(4), nn.Softmax(dim=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
)
def test_others_are_left_to_tvm(module):
    size = 32 if isinstance(module, nn.AdaptiveAvgPool2d) else 8
    assert with_means(module.eval(), torch.zeros(1, 4, size, size)) == []
