"""Programs that PT2E has quantised give what torch makes of them, to one step, on integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
import zoo
from torch import nn
from torch.nn import functional

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.prepare import prepare

OPS = torch.ops.quantized_decomposed
STEP, ZERO = 0.05, 100
SIZE = (1, 4, 8, 8)


def codes(x, scale=STEP, zero=ZERO):
    """Rounded to 256 values."""
    form = (scale, zero, 0, 255, torch.uint8)
    return OPS.dequantize_per_tensor(OPS.quantize_per_tensor(x, *form), *form)


class Layer(nn.Module):
    """A convolution as PT2E writes it: a weight of integers, or one that is rounded as it runs, and a float bias."""

    def __init__(self, filters=6, folded=True):
        super().__init__()
        weight = torch.randint(-127, 128, (filters, 4, 3, 3)) * (torch.rand(filters, 4, 3, 3) < 0.4)
        self.register_buffer("scales", torch.rand(filters) / 50 + 0.001)
        self.register_buffer("zeros", torch.zeros(filters, dtype=torch.int64))
        self.register_buffer("codes" if folded else "weight", weight.to(torch.int8) if folded else weight * 0.01)
        self.bias = nn.Parameter(torch.randn(filters))
        self.folded = folded

    def forward(self, x):
        form = (self.scales, self.zeros, 0, -128, 127, torch.int8)
        found = self.codes if self.folded else OPS.quantize_per_channel(self.weight, *form)
        return functional.conv2d(x, OPS.dequantize_per_channel(found, *form), self.bias, padding=1)


class Network(nn.Module):
    """Both kinds of layers, a sum, what moves numbers, and a linear layer of one scale."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(4), Layer(4, folded=False)
        self.register_buffer("codes", torch.randint(-127, 128, (5, 64)).to(torch.int8))

    def forward(self, x):
        x = codes(x)
        y = codes(functional.relu_(self.first(x)), 0.03, 0)
        y = functional.max_pool2d(codes(self.second(y) + x), 2).flatten(1)
        return functional.linear(y, OPS.dequantize_per_tensor(self.codes, 0.01, 3, -128, 127, torch.int8))


class Twice(nn.Module):
    """A sum that is changed in place and read again, and two layers of one module."""

    def __init__(self):
        super().__init__()
        self.layer = Layer(4)
        self.register_buffer("a", torch.randint(-127, 128, (4, 4, 1, 1)).to(torch.int8))
        self.register_buffer("b", torch.randint(-127, 128, (4, 4, 1, 1)).to(torch.int8))

    def forward(self, x):
        a, b = (OPS.dequantize_per_tensor(each, 0.0137, 0, -128, 127, torch.int8) for each in (self.a, self.b))
        y = self.layer(codes(x))
        x = codes(y.relu_()) + y
        return functional.conv2d(codes(functional.conv2d(codes(x), a)), b)


class Dynamic(nn.Module):
    """A scale that is computed."""

    def forward(self, x):
        scale, zero = OPS.choose_qparams(x, 0, 255, 1e-6, torch.uint8)
        return OPS.dequantize_per_tensor(
            OPS.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8), scale, zero, 0, 255, torch.uint8
        )


def exported(kind):
    torch.manual_seed(0)
    x = torch.randn(SIZE) * 2
    return torch.export.export(kind().eval(), (x,)), x


def assert_agrees(prepared, program, x):
    expected = program.module()(x).detach().numpy()
    (found,) = zoo.run_relax(prepared.mod, x.numpy())
    # Floats that are summed in another order; a code that is on an edge would show as 1e-2.
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_layers_are_on_integers_and_keep_their_names(tmp_path):
    program, x = exported(Network)
    prepared = prepare(program)
    assert_agrees(prepared, program, x)
    first, second = prepared.layers
    assert [first.name, second.name] == ["first", "second"]
    assert first.is_quantised and second.is_quantised and first.spec.least == -ZERO
    assert first.pattern.density < 0.5
    scales = prepared.scales["first"]
    assert (scales.scale, scales.zero) == (STEP, ZERO) and prepared.scales["second"].zero == 0
    assert np.array_equal(scales.of_weight[0], program.state_dict["first.scales"])
    torch.export.save(program, tmp_path / "m.pt2")
    from_file = prepare(tmp_path / "m.pt2")
    assert [layer.pattern for layer in from_file.layers] == [layer.pattern for layer in prepared.layers]


def test_neither_layers_nor_what_is_changed_in_place_are_taken_for_others():
    program, x = exported(Twice)
    assert_agrees(prepare(program), program, x)


def test_a_module_is_exported_and_in_half_precision_weights_are_floats():
    program, x = exported(Network)
    prepared = prepare(program.module(), x, dtype="float16")
    assert [(layer.name, layer.spec.dtype) for layer in prepared.layers] == [
        ("first", "float16"),
        ("second", "float16"),
    ]
    assert not prepared.is_quantised


def test_computed_scales_are_refused_by_name():
    with pytest.raises(ModelError, match=r"not imported, found quantized_decomposed\.choose_qparams\.tensor"):
        prepare(exported(Dynamic)[0])
