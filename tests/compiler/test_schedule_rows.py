"""Sums of rows are vectors first, and layer norms, softmaxes and means are what they were."""

import numpy as np
import pytest
import torch
import tvm
from test_schedule_elements import agrees
from torch import nn
from tvm import te, topi

from tvm_sparse.compiler.cpu_loops.schedule_rows import schedule_rows


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


class Copied(nn.Module):
    """A softmax whose result is copied, so that TVM computes it in the place of the exponentials."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.softmax(x, -1).roll(1, 1), -1)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LayerNorm(96), (1, 28, 28, 96)),
        (nn.LayerNorm(7), (2, 5, 7)),
        (nn.LayerNorm([6, 8]), (3, 6, 8)),
        (nn.Softmax(-1), (4, 3, 49, 49)),
        (nn.Softmax(-1), (2, 197)),
        (nn.Softmax(1), (2, 64, 5, 5)),
        (Copied(), (4, 6, 49, 49)),
        (Mean(), (1, 32, 112, 112)),
        (Mean(), (2, 512, 7, 7)),
        (Mean(), (1, 10, 3, 1)),
        (nn.Sequential(nn.GroupNorm(4, 32), nn.GELU()), (1, 32, 12, 12)),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "x".join(map(str, each)),
)
def test_results_are_those_of_torch(module, shape):
    agrees(module.eval(), *shape)


@pytest.mark.parametrize(("shape", "lanes"), [((64, 96), 16), ((64, 49), 7), ((64, 2, 98), 14)])
def test_sums_are_of_vectors(shape, lanes):
    x = te.placeholder(shape, name="x")
    result = topi.divide(topi.sum(x, [*range(1, len(shape))]), 3.0)
    module = schedule_rows(16)(tvm.IRModule({"main": te.create_prim_func([x, result])}))
    assert f"in T.vectorized({lanes})" in module["main"].script()


def test_others_are_left_alone():
    """A sum that is the result, one of other axes than the last, and what is read otherwise than by rows."""
    x = te.placeholder((64, 64), name="x")
    doubled = topi.add(topi.sum(x, 1), 1.0)
    for result in (topi.sum(x, 1), topi.divide(topi.sum(x, 0), 2.0), topi.transpose(topi.divide(x, doubled))):
        func = te.create_prim_func([x, result])
        assert "tirx.is_scheduled" not in schedule_rows(16)(tvm.IRModule({"main": func}))["main"].attrs


def test_rounding_is_no_worse_than_one_after_the_other():
    """Of many elements that are not small."""
    x = torch.full((1, 1, 512, 512), 0.1)
    agrees(Mean(), *x.shape)
    rows = np.float32(0.1) * np.ones(512 * 512, np.float32)
    assert abs(rows.mean() - 0.1) < 1e-6
