"""Dense linear layers have a schedule of their own on a GPU; here their code runs on the CPU."""

import numpy as np
import pytest
import torch
import tvm
from cuda_emulator import build_source, emulate
from torch import nn
from tvm.relax.backend.cuda import pipeline
from tvm.target import Target

from tvm_sparse.compiler.schedule_gemm import schedule_gemm
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.fold_constants import fold_constants

TARGET = Target({"kind": "cuda", "arch": "sm_90"})


def scheduled(module, rows, inputs):
    """The functions of `module` that the pass has scheduled."""
    relaxed = fold_constants(ModelSource(module).relax_module(torch.zeros(rows, inputs)))
    with TARGET:
        result = tvm.transform.Sequential([*pipeline.legalize_passes(TARGET)[:-1], schedule_gemm])(relaxed)
    return [func for _, func in result.functions_items() if "tirx.is_scheduled" in (func.attrs or {})]


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "relu"),
    [
        (1, 96, 40, False),
        (3, 512, 48, True),
        (2, 35, 7, True),
        (64, 96, 40, True),
        (6, 64, 100, False),
        (7, 35, 9, True),
    ],
)
def test_products_of_few_rows(rows, inputs, outputs, relu, tmp_path):
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs)
    (func,) = scheduled(nn.Sequential(linear, nn.ReLU()).eval() if relu else linear.eval(), rows, inputs)
    x = torch.randn(rows, inputs)
    expected = linear.double()(x.double())
    expected = expected.relu() if relu else expected
    weight, bias = (each.detach().float().numpy() for each in (linear.weight.T.contiguous(), linear.bias))
    values = {(rows, inputs): x.numpy(), weight.shape: weight, bias.shape: bias}
    y = np.full((rows, outputs), np.nan, np.float32)
    *taken, out = func.params
    arguments = {each.name: values[tuple(map(int, each.ty.shape))] for each in taken} | {out.name: y}
    emulate(*build_source(func.with_attr("global_symbol", "main"), TARGET), arguments, tmp_path)
    assert relative_difference(y, expected.detach().numpy()) < 1e-6


def test_others_are_left_to_tvm():
    assert scheduled(nn.Linear(32, 16).eval(), 256, 32) == []
    assert scheduled(nn.Sequential(nn.Linear(32, 16), nn.Softmax(dim=1)).eval(), 1, 32)
