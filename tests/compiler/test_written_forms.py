"""Layers whose kernels write results as they lie in the model: interleaved ones and lines, without a second pass."""

import numpy as np
import pytest
import torch
from torch import nn

from tvm_sparse.compiler.build_model import build
from tvm_sparse.compiler.building.make_kernels import kernels_of
from tvm_sparse.compiler.plan.choice import Default, Predicted
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.frontend.passes.relax_graph import Graph
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1, "opt-level": 0})


class SideBySide(nn.ModuleList):
    """Layers on an image, with seeded weights."""

    def __init__(self, layers):
        torch.manual_seed(0)
        super().__init__(layers(nn.ConvTranspose2d))

    def forward(self, x):
        """(N, 8, H, W) -> a result each."""
        return [each(x) for each in self]


class Layers(SideBySide):
    """Layers side by side on an image; kernels interleave all but the last two."""

    def __init__(self):
        super().__init__(
            lambda of: [
                nn.Sequential(of(8, 6, 2, 2), nn.BatchNorm2d(6), nn.ReLU()),
                of(8, 4, 4, 2, 1),
                of(8, 5, 3, (2, 1), 1, output_padding=(1, 0)),
                of(8, 4, (3, 5), (1, 3), (1, 0), bias=False),
                nn.Sequential(of(8, 4, 2, 2), nn.Sigmoid()),
                of(8, 4, 2, 2, groups=2),
            ]
        )
        for each in self.modules():
            if isinstance(each, nn.ConvTranspose2d):
                each.weight.data *= torch.rand(each.weight.shape) < 0.3


def assert_right(model, x, built, schedule):
    """All six layers by `schedule`, and their results are `model`'s in double precision."""
    assert [each["schedule"] for each in built.report()] == [schedule] * 6
    for found, wanted in zip(built(x.numpy()), model.double()(x.double()), strict=True):
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "decisions"),
    [((5, 7), None), ((4, 16), {"channels": 8, "filters": 4}), ((3, 40), {"channels": 2, "filters": 8})],
)
def test_outputs_are_interleaved_by_the_kernel(size, decisions):
    """With all sums in registers or not, rows of vectors or not, all filters a task or some."""
    model, x = Layers().eval(), torch.randn(2, 8, *size)
    prepared = prepare(model, x)
    chosen = [Decision(each.name, 0.3, "unstructured", _csr(each, decisions), "") for each in prepared.layers]
    kernels = kernels_of(prepared.layers, list(chosen), TARGET)
    mixing = [kernels[each.name].interleaving is not None for each in prepared.layers]
    assert mixing == [True] * 4 + [False] * 2
    assert_right(model, x, build(prepared, chosen, TARGET), "csr_cpu")


class Dense(SideBySide):
    """Layers side by side on an image; dense kernels interleave pairs of all but the last three."""

    def __init__(self):
        super().__init__(
            lambda of: [
                nn.Sequential(of(8, 6, 2, 2), nn.BatchNorm2d(6), nn.ReLU6()),
                of(8, 4, 3, 2, 1, output_padding=1),
                of(8, 4, (3, 2), (1, 2), bias=False),
                of(8, 4, 4, 2, 1),
                of(8, 4, (3, 2), (3, 2)),
                of(8, 16, 2, 2, groups=2),
            ]
        )


@pytest.mark.parametrize("size", [(5, 7), (4, 16), (3, 40), (5, 3)])
def test_dense_outputs_are_interleaved_by_the_kernel(size):
    """Rows of whole squares or not; rows of three pixels have none."""
    model, x = Dense().eval(), torch.randn(2, 8, *size)
    prepared = prepare(model, x)
    chosen = [Decision(each.name, 1.0, "dense", Default("dense_cpu"), "") for each in prepared.layers]
    kernels = kernels_of(prepared.layers, list(chosen), TARGET)
    mixing = [kernels[each.name].interleaving is not None for each in prepared.layers]
    assert mixing == [size[1] > 3] * 3 + [False] * 3
    assert_right(model, x, build(prepared, chosen, TARGET), "dense_cpu")


def _csr(layer, decisions):
    fits = decisions is not None and layer.spec.k % decisions["filters"] == 0 and layer.spec.groups == 1
    return Predicted("csr_cpu", decisions if fits else None)


def test_a_line_that_is_returned_is_not_copied():
    """Its kernel writes a map of one row."""
    prepared = prepare(nn.Conv1d(4, 8, 3).eval(), torch.zeros(1, 4, 16))
    (layer,) = prepared.layers
    kernels = kernels_of([layer], [Decision(layer.name, 1.0, "dense", Default("dense_cpu"), "")], TARGET)
    graph = Graph.of(replace_convolutions(prepared.mod, kernels, prepared.groups))
    assert [each.op.name for each in graph.definitions.values()][1:] == ["relax.call_tir", "relax.memory.view"]
