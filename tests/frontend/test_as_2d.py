"""Convolutions of lines and volumes, and transposed ones, are 2-D convolutions with the same numbers."""

import numpy as np
import pytest
import torch
import zoo
from other_ranks import CLASSES, Side, random_layers
from torch import nn

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.prune.layers import as_convolution, as_weight
from tvm_sparse.reports.inspection import described


def assert_2d(model, inputs):
    prepared = prepare(model, tuple(inputs))
    assert len(prepared.layers) == len(model)
    assert {layer.name for layer in prepared.layers} == {name for name, _ in model.named_children()}
    found = zoo.run_relax(prepared.mod, *(x.numpy() for x in inputs))
    wanted = model.double()(*(x.double() for x in inputs))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_random_layers():
    models = [random_layers(kind, seed=0, count=4) for kind in CLASSES]
    assert_2d(Side([layer for model, _ in models for layer in model]), [x for _, inputs in models for x in inputs])


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 26))
@pytest.mark.parametrize("kind", CLASSES)
def test_more_random_layers(kind, seed):
    assert_2d(*random_layers(kind, seed, count=20))


class Unet(nn.Module):
    """Two halves of lines, and what may stand between layers."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6)
        self.b, self.c = nn.Conv1d(6, 6, 3, 2, 1), nn.ConvTranspose1d(6, 6, 4, 2, 1)
        self.after, self.d = nn.BatchNorm1d(6), nn.Conv1d(12, 4, 1)
        self.norm.running_mean.normal_()
        self.after.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = nn.functional.leaky_relu(self.norm(self.a(nn.functional.pad(x, (2, 0)))), 0.1)
        deep = nn.functional.max_pool1d(torch.relu(self.b(x)) * 0.5, 3, 1, 1)
        up = torch.relu(self.after(self.c(deep)))
        return self.d(torch.cat([x, up], 1)) + 1


class Volume(nn.Module):
    """A residual block of volumes, and their double."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv3d(3, 4, 3, padding=1), nn.Conv3d(4, 4, 3, padding=1, bias=False)
        self.norm, self.c = nn.BatchNorm3d(4), nn.ConvTranspose3d(4, 2, 2, 2)
        self.norm.running_mean.normal_()

    def forward(self, x):
        x = torch.relu(self.a(x))
        x = torch.relu(self.norm(self.b(x)) + x)
        return torch.sigmoid(self.c(x)).mean((2, 3, 4))


@pytest.mark.parametrize(
    ("model", "shape", "epilogues"),
    [(Unet(), (2, 4, 16), ["b", "br", "br", "b"]), (Volume(), (2, 3, 4, 5, 6), ["br", "bar", "b"])],
    ids=["line", "volume"],
)
def test_what_stands_between_is_folded_in(model, shape, epilogues):
    x = torch.randn(shape)
    prepared = prepare(model.eval(), (x,))
    assert [layer.spec.key.rsplit("-", 1)[1] for layer in prepared.layers] == epilogues
    (found,) = zoo.run_relax(prepared.mod, x.numpy())
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_lines_are_seen_as_maps_once():
    x = torch.randn(2, 4, 16)
    prepared = prepare(Unet().eval(), (x,))
    assert prepared.layers[0].spec.padding == (0, 2, 0, 0)
    shapes = [described(layer)["shape"] for layer in prepared.layers]
    assert shapes[1:3] == ["2x6x16, 6x3, stride 2", "2x6x8, transposed 6x4, stride 2"]
    calls = [each.value for block in prepared.mod["main"].body.blocks for each in block.bindings]
    names = [call.op.name.removeprefix("relax.") for call in calls if hasattr(call.op, "name")]
    assert names.count("reshape") == 2, "one of the input and one of the output"


class Mixed(nn.Module):
    """A line and a volume with tensors of other ranks, and of sizes that broadcast."""

    def __init__(self):
        super().__init__()
        self.line, self.volume = nn.Conv1d(2, 3, 3), nn.Conv3d(2, 3, 1)

    def forward(self, line, volume, one):
        line, volume = self.line(line), self.volume(volume)
        broadcast = (
            line + one,
            volume * one[:, :, None, None],
            volume + volume[:, :, :1],
            volume + line[:, :, -1:, None, None],
        )
        return (*broadcast, line[None] + line[:, None], volume[0] + line[:, :, :, None])


def test_operands_of_all_shapes():
    inputs = torch.randn(1, 2, 6), torch.randn(1, 2, 3, 4, 5), torch.randn(1, 3, 1)
    model = Mixed().eval()
    found = zoo.run_relax(prepare(model, inputs).mod, *(x.numpy() for x in inputs))
    for one, other in zip(found, model(*inputs), strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_places_without_taps_are_no_zeros():
    """Of 3x3 taps with stride 2 there are four phases of up to 2x2."""
    (layer,) = prepare(nn.ConvTranspose2d(2, 3, 3, 2).eval(), (torch.randn(1, 2, 4, 4),)).layers
    assert layer.weight.size == 2 * 3 * 16 and not layer.weight.all()
    assert layer.model_pattern.size == layer.pattern.nnz == 2 * 3 * 9
    assert layer.model_pattern.structure == "dense" and not layer.is_pruned


def test_taps_that_read_zeros_alone_are_no_zeros():
    """Of 4x4 taps with padding 1 on a map of one pixel the inner four."""
    (layer,) = prepare(nn.ConvTranspose2d(2, 3, 4, 2, 1).eval(), (torch.randn(1, 2, 1, 1),)).layers
    assert layer.pattern.nnz == layer.model_pattern.size == 2 * 3 * 4 and not layer.is_pruned


def test_filters_and_channels_are_those_of_the_model():
    """Not their phases, nor their taps in depth."""
    kinds = [
        nn.ConvTranspose3d(4, 6, 3, 2, 1, output_padding=1, groups=2),
        nn.Conv3d(4, 6, 3, groups=2),
        nn.ConvTranspose2d(4, 6, 5, 3),
        nn.Conv1d(4, 6, 3),
    ]
    model = Side(kinds).eval()
    for layer in model:
        with torch.no_grad():
            torch.nn.init.normal_(layer.weight)
            weight = as_convolution(layer, layer.weight)
            weight[4:], weight[:2, 1] = 0, 0
            layer.weight *= torch.rand(layer.weight.shape) < 0.5
            layer.weight *= torch.from_numpy(as_weight(layer, weight) != 0)
    sizes = (3, 4, 5), (3, 4, 5), (4, 5), (6,)
    prepared = prepare(model, tuple(torch.randn(2, 4, *each) for each in sizes))
    for layer, found in zip(model, prepared.layers, strict=True):
        wanted, pattern = SparsityPattern.of(as_convolution(layer, layer.weight), layer.groups), found.model_pattern
        for name in ("size", "nnz", "structure", "dead_filters", "dead_channels"):
            assert getattr(pattern, name) == getattr(wanted, name)
    assert [layer.kind for layer in prepared.layers] == [
        "3-D transposed convolution",
        "3-D convolution",
        "transposed convolution",
        "1-D convolution",
    ]
    assert prepared.layers[0].shape_text == (
        "2x4x3x4x5, transposed 6x3x3x3, stride 2x2x2, output padding 1x1x1, groups 2"
    )
