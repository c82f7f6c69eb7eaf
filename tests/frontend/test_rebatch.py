"""Networks cut into turns: what keeps samples apart computes the same, what mixes them is refused."""

import numpy as np
import pytest
import torch
import zoo
from torch import nn
from tvm import relax

from tvm_sparse.compiler.rewriting.as_turns import as_turns
from tvm_sparse.frontend.passes.rebatch import rebatched
from tvm_sparse.frontend.prepare import prepare

SHAPE = (6, 4, 8, 8)


class Applied(nn.Module):
    """A function of a convolution's result."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(4, 6, 3, padding=1), function

    def forward(self, x):
        return self.function(self.conv(x))


def prepared(function, shape=SHAPE):
    return prepare(Applied(function).eval(), torch.zeros(shape)).mod


MATRIX = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
APART = {
    "activations": lambda y: torch.sigmoid(y) * y + torch.clip(y, -1, 1),
    "codes": lambda y: torch.clip(torch.round(y * 20), -128, 127) / 20,
    "pools": lambda y: nn.functional.max_pool2d(y, 2) + nn.functional.avg_pool2d(y, 2),
    "head": lambda y: nn.functional.adaptive_avg_pool2d(y, 1).flatten(1).softmax(-1),
    "product": lambda y: y.mean((2, 3)) @ MATRIX,
    "channels": lambda y: torch.cat([y, y * 2], 1),
    "several": lambda y: (y.mean((2, 3)), y.amax(1)),
    "split": lambda y: y.chunk(2, 1)[0] - y.chunk(2, 1)[1],
    "shuffle": lambda y: y.reshape(y.shape[0], 2, 3, 8, 8).permute(0, 2, 1, 3, 4).reshape(y.shape[0], 6, 8, 8),
    "gate": lambda y: y * torch.sigmoid(y.mean((2, 3), keepdim=True)),
    "sizes": lambda y: nn.functional.interpolate(nn.functional.pad(y, (1, 1, 1, 1)), scale_factor=2.0),
    "norm": lambda y: nn.functional.layer_norm(y, (8,)),
}
MIXED = {
    "mean of the samples": lambda y: y - y.mean(0, keepdim=True),
    "softmax over samples": lambda y: y.softmax(0),
    "order": lambda y: y.flip(0),
    "a sample alone": lambda y: y[:1] + y,
    "samples as channels": lambda y: y.transpose(0, 1),
    "samples together": lambda y: y.reshape(3, 12, 8, 8),
    "as many groups": lambda y: y.permute(1, 0, 2, 3).reshape(6, 6, 8, 8),
    "a number for each sample": lambda y: y + torch.arange(6.0).reshape(6, 1, 1, 1),
    "products of samples": lambda y: y.flatten(1) @ y.flatten(1).T,
    "twice as many": lambda y: torch.cat([y, y], 0),
    "running sums": lambda y: y.cumsum(0),
    "broadcast among samples": lambda y: y.mean((1, 2, 3)) + y.mean((0, 2, 3)),
    "the sum of all": lambda y: y.sum(),
    "samples for each sample": lambda y: y.flatten(1).expand(6, 6, 384),
}


@pytest.mark.parametrize("turns", [3, pytest.param(6, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", APART)
def test_turns_compute_what_the_batch_does(name, turns):
    module = prepared(APART[name])
    turn = rebatched(module, SHAPE[0] // turns)
    assert turn is not None
    (x,) = zoo.inputs_of([SHAPE])
    for found, expected in zip(zoo.run_relax(as_turns(turn, turns), x), zoo.run_relax(module, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_samples_is_refused(name):
    """Six samples of six channels: sizes alone do not tell the axes apart."""
    assert rebatched(prepared(MIXED[name]), 1) is None


def test_a_product_of_one_number_a_sample_is_refused():
    """With as many columns as samples: its result looks like numbers of samples, and is sums of them."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            numbers = builder.emit(relax.op.mean(x, [1]))
            y = builder.emit_output(relax.op.matmul(numbers, relax.const(np.ones((6, 6), np.float32))))
        builder.emit_func_output(y)
    assert rebatched(builder.get(), 1) is None


def test_one_turn_is_the_model():
    module = prepared(APART["pools"])
    assert as_turns(module, 1) is module


def test_inputs_of_other_numbers_of_samples_are_refused():
    class Two(nn.Module):
        def forward(self, x, y):
            return x + y

    module = prepare(Two(), (torch.zeros(4, 3), torch.zeros(1, 3))).mod
    assert rebatched(module, 1) is None
