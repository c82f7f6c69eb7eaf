"""Each pass keeps the numbers of every model in the zoo and leaves the graph that the next one expects."""

import functools

import numpy as np
import onnx
import pytest
import torch
import tvm
import zoo
from torch.nn.utils import prune
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline

from tvm_sparse.compiler.cpu_loops.schedule_matmul import schedule_matmul
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.conv import conv2d
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.find_convolutions import find_convolutions
from tvm_sparse.frontend.passes.folding.fold_batch_norm import fold_batch_norm
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants
from tvm_sparse.frontend.passes.folding.fold_padding import fold_padding
from tvm_sparse.frontend.passes.folding.trim_taps import trim_taps
from tvm_sparse.frontend.passes.name_convolutions import name_convolutions
from tvm_sparse.scheduling.kernel import Kernel

# Relax operators left once everything that can be fused is.
LEFT = {
    "batch_norm_before": ["subtract", "divide", "multiply", "add", "nn.relu", "call_tir"],
    "relu6": ["call_tir"],
    "batch3": ["call_tir", "nn.max_pool2d", "call_tir"],
    "depthwise": ["call_tir"] * 2,
    "stride2": ["call_tir"] * 2,
    "residual": ["call_tir"] * 2,
    "residual_swapped": ["call_tir"] * 2,
    "residual_two_convs": ["call_tir"] * 2,
    "used_twice": ["call_tir", "nn.relu", "call_tir"],
    "two_consumers": ["call_tir"] * 3,
    "doubled": ["call_tir", "add", "nn.relu"],
    "shared": ["call_tir"] * 2,
    "classifier": ["call_tir", "mean", "reshape", "matmul", "add"],
    "between": ["call_tir", "nn.max_pool2d", "call_tir", "call_tir", "sigmoid", "nn.avg_pool2d", "concat", "multiply"]
    + ["subtract", "divide", "multiply", "add", "clip", "call_tir", "mean"],
    "block": ["call_tir"] * 3,
    # TVM imports an ONNX Pad as a function of its own.
    "pad_node": ["call_tir"] * 2,
}


def dense_kernel(layer):
    """A dense kernel, unscheduled."""
    return Kernel(conv2d.conv2d(layer.spec), (layer.weight,))


def operators(module):
    calls = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [call.op.name.removeprefix("relax.") for call in calls if hasattr(call, "op")]


def prepare(module, weights):
    named = name_convolutions(fold_constants(module), weights)
    return fold_batch_norm(trim_taps(fold_padding(named)))


@functools.cache
def case(name, folder):
    """Imported module, inputs, expected outputs and weights of one model of the zoo."""
    if name in zoo.ONNX:
        path = folder / f"{name}.onnx"
        onnx.save(zoo.ONNX[name], path)
        arrays = zoo.inputs_of([zoo.X])
        source = ModelSource(path)
        return source.relax_module(), arrays, zoo.run_onnx(zoo.ONNX[name], *arrays), source.weights()
    module, shapes = zoo.TORCH[name]
    arrays = zoo.inputs_of(shapes)
    source = ModelSource(module)
    imported = source.relax_module(tuple(map(torch.from_numpy, arrays)))
    return imported, arrays, zoo.run_torch(module, *arrays), source.weights()


def assert_same(module, arrays, expected):
    relax.analysis.check_well_formed(module)
    outputs = zoo.run_relax(module, *arrays)
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx")


# Where the default run tests less, layers with folded weights are replaced, below.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*zoo.TORCH, *zoo.ONNX])
def test_folding_keeps_the_numbers(name, folder):
    module, arrays, expected, weights = case(name, folder)
    assert_same(prepare(module, weights), arrays, expected)


@pytest.mark.parametrize("name", [*zoo.TORCH, *zoo.ONNX])
def test_replacing_keeps_the_numbers(name, folder):
    module, arrays, expected, weights = case(name, folder)
    module = prepare(module, weights)
    layers = find_convolutions(module)
    replaced = replace_convolutions(module, {layer.name: dense_kernel(layer) for layer in layers})
    assert operators(replaced) == LEFT.get(name, ["call_tir"])
    assert_same(replaced, arrays, expected)


def test_find_reads_the_whole_epilogue(folder):
    module, _, _, weights = case("residual", folder)
    first, second = find_convolutions(prepare(module, weights))
    assert (first.name, second.name) == ("0", "3")
    assert (first.spec.bias, first.spec.residual, first.spec.relu) == (True, False, True)
    assert (second.spec.bias, second.spec.residual, second.spec.relu) == (True, True, True)
    assert second.spec.key.endswith("-bar")
    assert second.bias.shape == (4,)
    assert (second.weight == 0).any(), "zeros survive the batch norm"


def test_find_reads_the_geometry(folder):
    module, _, _, weights = case("dilated_unequal", folder)
    (layer,) = find_convolutions(prepare(module, weights))
    spec = layer.spec
    assert (spec.stride, spec.padding, spec.dilation, spec.groups) == ((2, 1), (0, 3, 0, 3), (1, 2), 1)
    assert (spec.input_shape, spec.weight_shape) == ((1, 4, 9, 9), (4, 4, 3, 3))


def test_padding_is_folded(folder):
    for name, padding in (("pads", (0, 1, 4, 1)), ("same_padding_even", (0, 0, 1, 1))):
        module, _, _, weights = case(name, folder)
        (layer,) = find_convolutions(prepare(module, weights))
        assert layer.spec.padding == padding


@pytest.mark.parametrize(
    ("name", "taps", "padding"),
    [
        ("dilated_beyond", (1, 1), (0, 0, 0, 0)),
        ("dilated_far", (3, 5), (5, 6, 5, 6)),
        # Its last two taps would begin a row inside the input.
        ("dilated_into_one", (3, 3), (3, 3, 3, 3)),
    ],
)
def test_taps_that_read_padding_alone_are_left_out(name, taps, padding, folder):
    module, _, _, weights = case(name, folder)
    (layer,) = find_convolutions(prepare(module, weights))
    assert layer.weight.shape[2:] == taps
    assert layer.spec.padding == padding
    assert layer.name == "0"


@pytest.mark.parametrize(("width", "after", "reads"), [(2, 0, False), (2, 2, False), (4, 0, True)])
def test_a_layer_that_reads_padding_alone_is_one_of_zeros(width, after, reads):
    """Its tap is one place before the row, and each fourth from there, of which the second may be in it."""
    builder, weight = relax.BlockBuilder(), np.ones((1, 1, 1, 1), np.float32)
    x = relax.Var("x", relax.TensorType((1, 1, 5, width), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            options = {"strides": (1, 4), "padding": (0, 1, 0, after)}
            y = builder.emit_output(relax.op.nn.conv2d(x, relax.const(weight), **options))
        builder.emit_func_output(y)
    (layer,) = find_convolutions(trim_taps(builder.get()))
    assert layer.weight.any() == reads


def test_names(folder):
    def names(name):
        module, _, _, weights = case(name, folder)
        return [layer.name for layer in find_convolutions(prepare(module, weights))]

    assert names("block") == ["Conv_0", "Conv_3", "Conv_5"]
    assert names("shared") == ["0", "0.2"]
    assert names("unbaked_mask") == ["Conv_1"]


def test_unnamed_convolutions_are_numbered(folder):
    module, _, _, _ = case("residual", folder)
    assert [layer.name for layer in find_convolutions(fold_constants(module))] == ["conv0", "conv1"]


def test_pruning_masks_are_baked():
    module = zoo.Chain(zoo.conv(), zoo.conv())
    prune.l1_unstructured(module[1], "weight", 0.9)
    imported = ModelSource(module).relax_module(torch.zeros(zoo.X))
    layers = {layer.name: layer for layer in find_convolutions(prepare(imported, ModelSource(module).weights()))}
    assert (layers["1"].weight != 0).sum() == 14
    np.testing.assert_array_equal(layers["1"].weight, ModelSource(module).weights()["1"])


def test_layers_without_a_kernel_stay(folder):
    module, arrays, expected, weights = case("residual", folder)
    module = prepare(module, weights)
    layers = find_convolutions(module)
    replaced = replace_convolutions(module, {layers[1].name: dense_kernel(layers[1])})
    assert operators(replaced) == ["nn.conv2d", "add", "nn.relu", "call_tir"]
    assert_same(replaced, arrays, expected)


def test_one_kernel_for_two_layers_is_one_function():
    layer = zoo.conv()
    model = zoo.Chain(layer, layer)
    arrays = zoo.inputs_of([zoo.X])
    module = prepare(ModelSource(model).relax_module(torch.from_numpy(arrays[0])), ModelSource(model).weights())
    layers = find_convolutions(module)
    assert [found.name for found in layers] == ["0", "1"]
    kernel = dense_kernel(layers[0])
    replaced = replace_convolutions(module, {found.name: kernel for found in layers})
    assert [name.name_hint for name in replaced.get_global_vars()] == ["main", "tvm_sparse_0_0"]
    assert_same(replaced, arrays, zoo.run_torch(model, *arrays))


def test_a_batch_norm_that_would_overflow_is_left():
    module = zoo.Chain(zoo.conv(), torch.nn.BatchNorm2d(4))
    with torch.no_grad():
        module[1].weight.fill_(3e38)
    imported = ModelSource(module).relax_module(torch.zeros(zoo.X))
    (layer,) = find_convolutions(prepare(imported, ModelSource(module).weights()))
    np.testing.assert_array_equal(layer.weight, ModelSource(module).weights()["0"])


def test_a_weight_that_is_not_finite_is_refused():
    module = zoo.Chain(zoo.conv())
    with torch.no_grad():
        module[0].weight[1, 2, 0, 0] = np.nan
    with pytest.raises(ModelError, match=r"layer conv0: weight\[1, 2, 0, 0\] is not finite"):
        name_convolutions(fold_constants(ModelSource(module).relax_module(torch.zeros(zoo.X))), {})


@pytest.mark.parametrize("outputs", [1, 7, 10, 96, 250])
@pytest.mark.parametrize(("images", "features"), [(3, 33), (1, 33), (1, 34)])
def test_matrix_products_are_scheduled(images, features, outputs):
    """Of one image threads share the rows of the weight, where these divide them."""
    model = torch.nn.Linear(features, outputs).eval()
    arrays = [zoo.inputs_of([(images, features, 1, 1)])[0].reshape(images, features)]
    module = fold_constants(ModelSource(model).relax_module(torch.from_numpy(arrays[0])))
    scheduled = tvm.transform.Sequential([*pipeline.legalize_passes(None), schedule_matmul(2)])(module)
    functions = [func for _, func in scheduled.functions_items() if "tirx.is_scheduled" in (func.attrs or {})]
    assert len(functions) == 1
    assert_same(scheduled, arrays, zoo.run_torch(model, *arrays))
