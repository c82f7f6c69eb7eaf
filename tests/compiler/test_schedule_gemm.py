"""Dense linear layers have a schedule of their own on a GPU; here their code runs on the CPU."""

import pytest
import torch
from gpu_functions import emulated, scheduled
from torch import nn

from tvm_sparse.compiler.gpu_loops.schedule_gemm import schedule_gemm
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants


def with_products(module, rows, inputs):
    """The functions of `module` that the pass has scheduled."""
    relaxed = fold_constants(ModelSource(module).relax_module(torch.zeros(rows, inputs)))
    return scheduled(relaxed, schedule_gemm)


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
def test_products_of_few_rows(rows, inputs, outputs, relu):
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs)
    (func,) = with_products(nn.Sequential(linear, nn.ReLU()).eval() if relu else linear.eval(), rows, inputs)
    x = torch.randn(rows, inputs)
    expected = linear.double()(x.double())
    expected = expected.relu() if relu else expected
    weight, bias = (each.detach().float().numpy() for each in (linear.weight.T.contiguous(), linear.bias))
    values = {(rows, inputs): x.numpy(), weight.shape: weight, bias.shape: bias}
    inputs_of = {each.name: values[tuple(map(int, each.ty.shape))] for each in func.params[:-1]}
    y, _ = emulated(func, inputs_of, (rows, outputs))
    assert relative_difference(y, expected.detach().numpy()) < 1e-6


def test_others_are_left_to_tvm():
    assert with_products(nn.Linear(32, 16).eval(), 256, 32) == []
    assert with_products(nn.Sequential(nn.Linear(32, 16), nn.Softmax(dim=1)).eval(), 1, 32)
