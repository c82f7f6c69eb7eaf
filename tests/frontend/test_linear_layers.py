"""Sparse linear layers, as each front end writes them: found under their names, and replaced without a copy."""

import copy
import functools

import linear_zoo
import numpy as np
import onnx
import pytest
import torch
import zoo
from test_passes import assert_same, dense_kernel, operators
from torch import nn
from torch.nn.utils import prune

from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.relax_graph import MAX_LINEAR_DENSITY
from tvm_sparse.frontend.prepare import prepare

# Relax operators left beside calls of kernels, views and the front ends' own changes of shape.
VIEWS = ("call_tir", "memory.view", "reshape", "broadcast_to")
LEFT = {
    "attention": ["permute_dims", "matmul", "nn.softmax", "matmul"],
    "dense": ["matmul", "add", "nn.relu", "matmul", "add"],
    "two_outputs": ["nn.relu"],
    "classifier": ["nn.max_pool2d"],
    "gemm_full_bias": ["add"],
    "gemm_transposed_input": ["permute_dims"],
}


@functools.cache
def case(name, folder):
    """A prepared model, its input and expected outputs, and the layers it should have."""
    if name in linear_zoo.ONNX:
        model, (layer, key) = linear_zoo.ONNX[name]
        onnx.save(model, folder / f"{name}.onnx")
        shape = tuple(dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim)
        (x,) = zoo.inputs_of([shape])
        return prepare(folder / f"{name}.onnx"), x, zoo.run_onnx(model, x), {layer: key}
    module, shape, layers = linear_zoo.TORCH[name]
    (x,) = zoo.inputs_of([shape])
    return prepare(module, torch.from_numpy(x)), x, zoo.run_torch(module, x), layers


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx")


ALL = [*linear_zoo.TORCH, *linear_zoo.ONNX]


@pytest.mark.parametrize("name", ALL)
def test_layers_are_found_under_their_names(name, folder):
    prepared, _, _, layers = case(name, folder)
    assert {layer.name: layer.spec.key for layer in prepared.layers} == layers
    for layer in prepared.layers:
        assert layer.is_linear == (layer.spec.h == 1)
        assert layer.weight.shape == layer.spec.weight_shape and layer.weight.flags.c_contiguous
        assert (layer.bias is not None) == layer.spec.bias


# Where the default run tests less, layers with folded weights are replaced, below.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ALL)
def test_folding_keeps_the_numbers(name, folder):
    prepared, x, expected, _ = case(name, folder)
    assert_same(prepared.mod, [x], expected)


@pytest.mark.parametrize("name", ALL)
def test_replacing_keeps_the_numbers(name, folder):
    prepared, x, expected, _ = case(name, folder)
    replaced = replace_convolutions(prepared.mod, {layer.name: dense_kernel(layer) for layer in prepared.layers})
    found = operators(replaced)
    assert found.count("call_tir") == len(prepared.layers)
    assert [each for each in found if each not in VIEWS] == LEFT.get(name, [])
    assert_same(replaced, [x], expected)


def test_a_weight_is_stored_as_its_layer_multiplies(folder):
    for name in ("gemm", "gemm_transposed", "matmul", "transposed_initializer", "masked"):
        (layer,) = case(name, folder)[0].layers
        np.testing.assert_array_equal(layer.weight[:, :, 0, 0], linear_zoo.W)


def test_alpha_is_folded_into_the_weight_and_beta_into_the_bias(folder):
    (layer,) = case("gemm_alpha_beta", folder)[0].layers
    np.testing.assert_array_equal(layer.weight[:, :, 0, 0], linear_zoo.W * np.float32(0.5))
    np.testing.assert_array_equal(layer.bias, linear_zoo.B * np.float32(-2))


def test_a_scaling_that_would_overflow_is_left(tmp_path):
    large = np.where(linear_zoo.W, np.float32(3e38), np.float32(0))
    model = linear_zoo._gemm(weights={"w": large.T.copy(), "b": linear_zoo.B}, alpha=2.0)
    onnx.save(model, tmp_path / "m.onnx")
    (layer,) = prepare(tmp_path / "m.onnx").layers
    assert layer.weight.max() == np.float32(3e38)


def test_an_input_scaled_for_others_too_stays():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = linear_zoo.linear(12, 12)

        def forward(self, x):
            y = x * 0.5
            return self.fc(y) + y.exp()

    (x,) = zoo.inputs_of([linear_zoo.X])
    module = Scaled().eval()
    prepared = prepare(module, torch.from_numpy(x))
    assert operators(prepared.mod).count("multiply") == 1
    np.testing.assert_array_equal(prepared.layers[0].weight[:, :, 0, 0], module.fc.weight.detach().numpy() * 0.5)
    assert_same(prepared.mod, [x], zoo.run_torch(module, x))


@pytest.mark.parametrize(("zeros", "is_found"), [(47, False), (48, True), (49, True)])
def test_only_layers_with_zeros_enough_are_found(zeros, is_found):
    """The limit itself, half of 96 weights, is inside."""
    assert MAX_LINEAR_DENSITY == 0.5
    layer = linear_zoo.linear(density=1.0)
    with torch.no_grad():
        layer.weight.view(-1)[:zeros] = 0
    found = prepare(nn.Sequential(layer).eval(), torch.zeros(linear_zoo.X)).layers
    assert [each.name for each in found] == (["0"] if is_found else [])


def test_pruning_masks_are_baked():
    module = nn.Sequential(linear_zoo.linear(density=1.0)).eval()
    prune.l1_unstructured(module[0], "weight", 0.9)
    (layer,) = prepare(module, torch.zeros(linear_zoo.X)).layers
    assert layer.name == "0" and layer.pattern.nnz == 10


def test_a_weight_that_is_not_finite_is_refused():
    module = nn.Sequential(linear_zoo.linear(bias=False)).eval()
    with torch.no_grad():
        module[0].weight[3, 5] = np.inf
    with pytest.raises(ModelError, match=r"layer 0: weight\[3, 5, 0, 0\] is not finite, found inf"):
        prepare(module, torch.zeros(linear_zoo.X))


def test_matrices_that_are_no_layer_may_hold_anything():
    """A mask of infinities and a table in half precision are no weights of ours, nor refused as such."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = linear_zoo.linear(12, 12)
            self.register_buffer("mask", torch.full((3, 12), -np.inf).triu(2))
            self.register_buffer("table", torch.ones(3, 12, dtype=torch.float16))

        def forward(self, x):
            return self.fc(x) + self.mask + self.table.float()

    module = Masked().eval()
    assert set(ModelSource(module).weights()) == {"fc", "mask", "table"}
    (x,) = zoo.inputs_of([linear_zoo.X])
    prepared = prepare(module, torch.from_numpy(x))
    assert [(layer.name, layer.spec.dtype) for layer in prepared.layers] == [("fc", "float32")]
    np.testing.assert_allclose(zoo.run_relax(prepared.mod, x)[0], zoo.run_torch(module, x)[0], rtol=1e-4, atol=1e-4)


def test_one_kernel_for_a_layer_applied_twice_is_one_function():
    module, shape, _ = copy.deepcopy(linear_zoo.TORCH["shared"])
    # No filter is all zero, so that both places keep all of the weight.
    (weight,) = [each for each in module.parameters() if each.dim() == 2]
    weight.data += torch.eye(len(weight))
    (x,) = zoo.inputs_of([shape])
    prepared = prepare(module, torch.from_numpy(x))
    kernel = dense_kernel(prepared.layers[0])
    replaced = replace_convolutions(prepared.mod, {layer.name: kernel for layer in prepared.layers})
    assert [name.name_hint for name in replaced.get_global_vars()] == ["main", "tvm_sparse_0_0"]
    assert_same(replaced, [x], zoo.run_torch(module, x))
