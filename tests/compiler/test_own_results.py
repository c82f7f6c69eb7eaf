"""Outputs are the caller's own, whatever a model returns."""

import itertools

import numpy as np
import pytest
import torch
import zoo
from torch import nn

from tvm_sparse.compiler import build_model
from tvm_sparse.runtime import artifact

pytestmark = pytest.mark.usefixtures("unoptimised")


class Returning(nn.Module):
    """Returns its input, a result twice, a view of each, and a constant."""

    def __init__(self):
        super().__init__()
        self.conv = zoo.Chain(zoo.conv())
        self.register_buffer("anchors", torch.arange(8.0))

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return y, x, y.flatten(2), y * 1, x.reshape(4, 81), self.anchors, self.anchors.reshape(2, 4), x[0]


def test_who_writes_to_outputs_changes_nothing_else(tmp_path):
    model, (x,) = Returning().eval(), map(torch.from_numpy, zoo.inputs_of([zoo.X]))
    given, expected = x.clone(), [each.clone() for each in model(x)]
    compiled = build_model.compile(model, x)
    for each in (compiled, artifact.load(compiled.save(tmp_path / "m.sparse"))):
        for _ in range(2):
            outputs = each(x)
            torch.testing.assert_close(outputs, expected)
            assert not any(np.shares_memory(*pair) for pair in itertools.combinations([x, *outputs], 2))
            for output in outputs:
                output.fill_(7)
            assert torch.equal(x, given)
