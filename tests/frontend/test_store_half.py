"""Models in half precision, and float32 models that are cast to it."""

import copy

import numpy as np
import onnx
import pytest
import torch
import zoo
from onnx import TensorProto
from torch import nn

from tvm_sparse.conv.dtypes import HALVES
from tvm_sparse.conv.storage import rounded
from tvm_sparse.errors import ModelError, UsageError
from tvm_sparse.frontend.passes.find_convolutions import find_groups
from tvm_sparse.frontend.passes.relax_graph import Graph, matrix_weight
from tvm_sparse.frontend.prepare import prepare

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Convolutions with a batch norm, a residual and a ReLU6, pooling, a sparse and a dense linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.sparse, self.head = nn.Linear(8, 16), nn.Linear(16, 5)
        self.norm.running_mean.uniform_(-1, 1)
        for layer in (self.stem, self.inner, self.sparse):
            layer.weight.data *= torch.rand_like(layer.weight) < 0.3
        self.eval()

    def forward(self, x):
        y = nn.ReLU6()(self.norm(self.stem(x)))
        y = torch.relu(self.inner(y) + y)
        y = nn.functional.max_pool2d(y, 2).mean((2, 3))
        return torch.softmax(self.head(self.sparse(y)), -1)


def as_onnx(dtype, **initializers):
    """A convolution with a bias and a ReLU in ONNX, tensors of a half-precision type."""
    shapes = {"x": (1, 2, 4, 4)}, {"y": (1, 3, 4, 4)}
    nodes = [("Conv", ["x", "conv.weight", "b"], ["t"], {"pads": [1, 1, 1, 1]}), ("Relu", ["t"], ["y"], {})]
    model = zoo.onnx_model(nodes, initializers, *shapes)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = dtype
    return model


@pytest.mark.parametrize("dtype", HALVES)
def test_a_half_torch_module_is_of_its_type_throughout(dtype):
    half = copy.deepcopy(Net()).to(getattr(torch, dtype))
    prepared = prepare(half, X.to(getattr(torch, dtype)))
    assert [(layer.name, layer.spec.dtype) for layer in prepared.layers] == [
        ("stem", dtype),
        ("inner", dtype),
        ("sparse", dtype),
    ]
    assert (prepared.layers[0].spec.relu_max, prepared.layers[1].spec.residual) == (6, True)
    assert str(prepared.layers[0].bias.dtype) == dtype
    (parameter,) = prepared.mod["main"].params
    assert (str(parameter.ty.dtype), str(prepared.mod["main"].ret_ty.dtype)) == (dtype, dtype)
    assert prepared.inputs == (dtype,)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_numbers_are_those_of_float32_but_for_rounding(dtype):
    net = Net()
    (found,) = zoo.run_relax(prepare(net, X, dtype=dtype).mod, X.numpy().astype(dtype))
    assert str(found.dtype) == dtype
    (expected,) = zoo.run_torch(net, X.numpy())
    roundoff = {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    difference = np.abs(found.astype(np.float32) - expected).max()
    assert 0 < difference < 8 * roundoff * np.abs(expected).max()


def test_weights_are_rounded_once_and_batch_norms_folded_before():
    net = Net()
    float32, half = prepare(net, X).layers[0], prepare(net, X, dtype="float16").layers[0]
    np.testing.assert_array_equal(half.weight, rounded(float32.weight, "float16"))
    np.testing.assert_array_equal(half.bias, float32.bias.astype(np.float16))
    assert half.weight.dtype == np.float32


def test_a_half_model_can_be_cast_to_float32():
    prepared = prepare(Net().half(), X.half(), dtype="float32")
    assert {layer.spec.dtype for layer in prepared.layers} == {"float32"}
    assert str(prepared.mod["main"].params[0].ty.dtype) == "float32"


@pytest.mark.parametrize("dtype", HALVES)
def test_a_half_pt2_file_is_read(dtype, tmp_path):
    kind = getattr(torch, dtype)
    net = Net().to(kind)
    torch.export.save(torch.export.export(net, (X.to(kind),)), tmp_path / "m.pt2")
    prepared = prepare(tmp_path / "m.pt2")
    assert [layer.name for layer in prepared.layers] == ["stem", "inner", "sparse"]
    assert {layer.spec.dtype for layer in prepared.layers} == {dtype}


def test_a_half_onnx_file_is_read(tmp_path):
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((3, 2, 3, 3)).astype(np.float16), rng.standard_normal(3).astype(np.float16)
    model = as_onnx(TensorProto.FLOAT16, **{"conv.weight": weight, "b": bias})
    onnx.save(model, tmp_path / "m.onnx")
    (layer,) = prepare(tmp_path / "m.onnx").layers
    assert (layer.name, layer.spec.dtype, layer.spec.relu) == ("conv", "float16", True)
    np.testing.assert_array_equal(layer.weight, weight.astype(np.float32))


def test_outputs_keep_their_own_types():
    class Widened(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.conv(x)
            return y, y.float().mean((2, 3))

    main = prepare(Widened().half().eval(), X.half()).mod["main"]
    assert [str(each.dtype) for each in main.ret_ty.fields] == ["float16", "float32"]


def test_a_mixture_of_halves_is_refused():
    net = Net().half()
    net.head.to(torch.bfloat16)

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net.head(self.net.sparse(x).to(torch.bfloat16))

    with pytest.raises(ModelError, match="mixes types of half precision, found float16 and bfloat16"):
        prepare(Mixed().eval(), torch.zeros(2, 8).half())


def test_a_weight_that_the_type_cannot_hold_is_refused():
    net = Net()
    net.inner.weight.data[0, 0, 0, 0] = 1e5
    with pytest.raises(ModelError, match=r"layer inner: its weight or bias is too large for float16, found 1e\+05"):
        prepare(net, X, dtype="float16")
    assert prepare(net, X, dtype="bfloat16").layers[1].weight.max() > 9e4


def test_an_unknown_type_is_refused():
    with pytest.raises(UsageError, match="no tensors are stored in it, found 'int8'; allowed: float32, float16, bfl"):
        prepare(Net(), X, dtype="int8")


class Mixed(nn.Module):
    """A convolution in half precision, a norm in float32 with a step too large for that, and a float32 head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Conv2d(3, 8, 3).half(), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        wide = self.stem(x).float()
        y = (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-6)).half()
        return y * 2, 1e5 * self.head(wide) + torch.arange(6.0)


def test_what_a_model_has_in_float32_stays_so():
    net, x = Mixed().eval(), (1000 * X).half()
    prepared = prepare(net, x)
    assert [layer.spec.dtype for layer in prepared.layers] == ["float16", "float32"]
    np.testing.assert_allclose(prepared.layers[1].weight, 1e5 * net.head.weight.detach().numpy(), rtol=1e-6)
    with torch.no_grad():
        wanted = [each.numpy() for each in net(x)]
    for found, expected, roundings in zip(zoo.run_relax(prepared.mod, x.numpy()), wanted, (2, 1), strict=True):
        assert found.dtype == expected.dtype
        assert np.abs(found - expected).max() <= roundings * 2**-11 * np.abs(expected).max()


class Steps(nn.Module):
    """Operators of torch that are several here, whose steps half precision cannot hold."""

    def forward(self, x):
        functional = nn.functional
        flat = x.flatten(2)
        attention = functional.scaled_dot_product_attention(flat, flat, flat)
        return functional.softplus(x), functional.rms_norm(x, [8]), functional.normalize(x, dim=1), attention


@pytest.mark.parametrize("is_cast", [True, False])
def test_what_is_within_an_operator_is_not_rounded(is_cast):
    x = (1000 * X).half()
    prepared = prepare(Steps(), x.float(), dtype="float16") if is_cast else prepare(Steps(), x)
    for found, expected in zip(zoo.run_relax(prepared.mod, x.numpy()), Steps()(x.double()), strict=True):
        assert np.abs(found - expected.numpy()).max() <= 2 * 2**-11 * expected.abs().max()


class Tiny(nn.Module):
    """Numbers that float16 does not have, and none of which is written."""

    def forward(self, x, mask):
        shares = x / x.abs().sum(1, keepdim=True).clamp_min(1e-12)
        return shares, 1e-6 * (1e6 * x), torch.softmax(x.masked_fill(mask, torch.finfo(torch.float32).min), -1)


def test_what_is_not_written_is_not_rounded():
    x, mask = X * (X > 1), torch.ones(1, 1, 8, 8).triu(-1).bool()
    mod = prepare(Tiny(), (x, mask), dtype="float16").mod
    for found, expected in zip(zoo.run_relax(mod, x.half().numpy(), mask.numpy()), Tiny()(x, mask), strict=True):
        assert np.abs(found - expected.numpy()).max() <= 2 * 2**-11 * expected.abs().max()


def test_a_dense_linear_layer_reads_what_is_added_to_it_as_stored():
    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return self.linear(x) + torch.sigmoid(x)

    mod = prepare(Added().eval(), X[0, 0], dtype="float16").mod
    (layer,) = (group.layer for group in find_groups(Graph.of(mod), matrix_weight))
    assert (layer.spec.dtype, layer.spec.bias, layer.spec.residual) == ("float16", True, True)


class WithinAutocast(Net):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            return super().forward(x)


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_is_the_casts_that_it_stands_for(dtype):
    if dtype == "float16":
        prepared = prepare(torch.export.export(WithinAutocast(), (X,)))
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prepared = prepare(Net(), X)
    assert [(layer.name, layer.spec.dtype) for layer in prepared.layers] == [
        ("stem", dtype),
        ("inner", dtype),
        ("sparse", dtype),
    ]
    (found,), (expected,) = zoo.run_relax(prepared.mod, X.numpy()), zoo.run_torch(Net(), X.numpy())
    assert np.abs(found.astype(np.float32) - expected).max() < 0.02 * np.abs(expected).max()


def test_casts_of_an_onnx_file_are_where_it_has_them(tmp_path):
    """Inputs and outputs in float32, as converters leave them, and a norm in it between."""
    half, wide = TensorProto.FLOAT16, TensorProto.FLOAT
    nodes = [("Cast", ["x"], ["h"], {"to": half}), ("Conv", ["h", "conv.weight"], ["c"], {})]
    nodes += [("Cast", ["c"], ["w"], {"to": wide}), ("Mul", ["w", "w"], ["s"], {}), ("Sqrt", ["s"], ["a"], {})]
    nodes += [("Sub", ["a", "w"], ["d"], {}), ("Cast", ["d"], ["g"], {"to": half}), ("Softplus", ["g"], ["p"], {})]
    nodes.append(("Cast", ["p"], ["y"], {"to": wide}))
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float16)
    model = zoo.onnx_model(nodes, {"conv.weight": weight}, {"x": (2, 3, 8, 8)}, {"y": (2, 4, 6, 6)})
    onnx.save(model, tmp_path / "m.onnx")
    prepared = prepare(tmp_path / "m.onnx")
    assert [(layer.name, layer.spec.dtype) for layer in prepared.layers] == [("conv", "float16")]
    x = 300 * X.numpy()
    (found,), (expected,) = zoo.run_relax(prepared.mod, x), zoo.run_onnx(model, x)
    assert np.abs(found - expected).max() <= 2 * 2**-11 * np.abs(expected).max()
