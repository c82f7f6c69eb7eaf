"""Torch operators of which TVM's importer ignores an argument are refused; their kin are computed as torch does."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch import nn
from torch.nn import functional

from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.torch.import_program import export_module, import_program


class After(nn.Module):
    """A convolution and something behind it."""

    def __init__(self, step):
        super().__init__()
        torch.manual_seed(0)
        self.step, self.conv = step, nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.step(self.conv(x))


REFUSED = {
    "add with alpha=2": lambda x: torch.add(x, x * x, alpha=2),
    "add_ with alpha=2": lambda x: x.add_(x * x, alpha=2),
    "sub with alpha=3": lambda x: torch.sub(x, x * x, alpha=3),
    "rsub with alpha=2": lambda x: torch.rsub(x, x * x, alpha=2),
    "rsub with alpha=4": lambda x: torch.rsub(x, 1.5, alpha=4),
    "an average pool with divisor_override": lambda x: functional.avg_pool2d(x, 2, divisor_override=3),
    "the nearest of 6x6 for 7x9 pixels": lambda x: functional.interpolate(x, size=(7, 9)),
    "the nearest of 6x6 for 3x4 pixels": lambda x: functional.interpolate(x, size=(3, 4)),
    "the nearest of 6x6 for 7x7 pixels": lambda x: functional.interpolate(x, scale_factor=1.3),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_an_ignored_argument_is_named(problem):
    program = export_module(After(REFUSED[problem]).eval(), torch.zeros(1, 4, 6, 6))
    with pytest.raises(ModelError, match=f"TVM cannot import .*: {problem}; "):
        import_program("model", program)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: torch.add(x, x * x),
        lambda x: torch.sub(x, x * x, alpha=1),
        lambda x: 1.5 - x,
        lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda x: functional.interpolate(x, size=(12, 6)),
        lambda x: functional.interpolate(x, scale_factor=1.5),
        lambda x: functional.interpolate(x, size=(7, 9), mode="bilinear"),
    ],
)
def test_its_kin_are_computed(step):
    model, x = After(step).eval(), torch.randn(1, 4, 6, 6)
    (y,) = zoo.run_relax(import_program("model", export_module(model, x.clone())), x.numpy())
    assert relative_difference(y, model(x.clone()).detach().numpy()) < 1e-6
