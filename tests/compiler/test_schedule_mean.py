"""Means over an image's pixels have a schedule of their own on a GPU; here their code runs on the CPU."""

import numpy as np
import pytest
import torch
import tvm
from cuda_emulator import build_source, emulate
from torch import nn
from tvm.relax.backend.cuda import pipeline
from tvm.target import Target

from tvm_sparse.compiler.schedule_mean import schedule_mean
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.fold_constants import fold_constants

TARGET = Target({"kind": "cuda", "arch": "sm_90"})


def scheduled(module, x):
    """The functions of `module` that the pass has scheduled."""
    relaxed = fold_constants(ModelSource(module).relax_module(x))
    with TARGET:
        result = tvm.transform.Sequential([*pipeline.legalize_passes(TARGET)[:-1], schedule_mean])(relaxed)
    return [func for _, func in result.functions_items() if "tirx.is_scheduled" in (func.attrs or {})]


@pytest.mark.parametrize("shape", [(2, 12, 7, 7), (3, 5, 4, 4), (1, 9, 9, 15)])
def test_means_of_all_pixels(shape, tmp_path):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    (func,) = scheduled(nn.AdaptiveAvgPool2d(1).eval(), x)
    taken, out = func.params
    y = np.full((*shape[:2], 1, 1), np.nan, np.float32)
    source, launches = build_source(func.with_attr("global_symbol", "main"), TARGET)
    emulate(source, launches, {taken.name: x.numpy(), out.name: y}, tmp_path)
    assert relative_difference(y, x.double().mean((2, 3), keepdim=True).numpy()) < 1e-6


@pytest.mark.parametrize(
    "module", [nn.AvgPool2d(2), nn.MaxPool2d(4), nn.Softmax(dim=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
)
def test_others_are_left_to_tvm(module):
    size = 32 if isinstance(module, nn.AdaptiveAvgPool2d) else 8
    assert scheduled(module.eval(), torch.zeros(1, 4, size, size)) == []
