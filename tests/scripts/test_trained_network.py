"""The study of a trained network: a file as a module and back, fitting, rendered text, and the page of results."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from distillation import loss_of, prune_by_fitting, prune_by_magnitude, pruned_layers
from onnx_module import OnnxModule
from recogniser import text_of
from text_images import CHARACTERS, HEIGHT, TRAINED_FONTS, WIDTH, WORDS, lines
from trained_network import scores
from trained_report import written

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "trained-recogniser.json"


@pytest.fixture(scope="module")
def model():
    """A convolution, a mean over rows, a product and softmax, of (N, 3, 4, 8), weights as constants."""
    source = np.random.default_rng(0)
    shapes = {"w": (64, 3, 3, 3), "b": (64,), "v": (64, 64, 1, 1), "m": (64, 32), "c": (32,)}
    constants = [
        onnx.helper.make_node(
            "Constant", [], [name], value=onnx.numpy_helper.from_array(source.normal(0, 0.3, shape).astype(np.float32))
        )
        for name, shape in shapes.items()
    ]
    pad = {"pads": [1, 1, 1, 1], "strides": [1, 1], "group": 1, "kernel_shape": [3, 3]}
    one = {**pad, "pads": [0, 0, 0, 0], "kernel_shape": [1, 1]}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w", "b"], ["p"], **pad),
        onnx.helper.make_node("Relu", ["p"], ["q"]),
        onnx.helper.make_node("Conv", ["q", "v"], ["r"], **one),
        onnx.helper.make_node("ReduceMean", ["r"], ["s"], axes=[2], keepdims=0),
        onnx.helper.make_node("Transpose", ["s"], ["t"], perm=[0, 2, 1]),
        onnx.helper.make_node("MatMul", ["t", "m"], ["u"]),
        onnx.helper.make_node("Add", ["u", "c"], ["a"]),
        onnx.helper.make_node("Softmax", ["a"], ["y"], axis=2),
    ]
    ends = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)]
        for name, shape in (("x", ["n", 3, 4, 8]), ("y", ["n", 8, 32]))
    ]
    graph = onnx.helper.make_graph([*constants, *nodes], "g", *ends)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 12)], ir_version=8)


def run(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_a_file_is_a_module_and_a_file_again(model):
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 8)).astype(np.float32)
    network = OnnxModule(model)
    assert np.allclose(torch.softmax(network(torch.tensor(x))[-1], -1).detach().numpy(), run(model, x), atol=1e-5)
    with torch.no_grad():
        for each in network.parameters():
            each.mul_(0.5)
    found = torch.softmax(network(torch.tensor(x))[-1], -1).detach().numpy()
    assert np.allclose(found, run(network.write(model), x), atol=1e-5) and not np.allclose(found, run(model, x))


def test_a_fitted_network_is_nearer_to_its_teacher(model):
    teacher, losses = OnnxModule(model), {}
    images = torch.randn(96, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    prune_by_fitting(fitted := OnnxModule(model), teacher, images[:64], 0.7)
    prune_by_magnitude(plain := OnnxModule(model), 0.7, fitted)
    for name, network in (("magnitude", plain), ("fitted", fitted)):
        layers = pruned_layers(network)
        assert list(layers) == ["l1", "l2"]
        assert all(abs((each.weight == 0).float().mean().item() - 0.7) < 0.01 for each in layers.values())
        losses[name] = loss_of(network(images[64:]), teacher(images[64:]), [1, 2]).item()
    assert losses["fitted"] < 0.8 * losses["magnitude"]


def test_lines_are_rendered_alike_each_time():
    images, texts = lines("test", 3, 0, [*TRAINED_FONTS, None])
    again, _ = lines("test", 3, 0, [*TRAINED_FONTS, None])
    assert images.shape == (3, 3, HEIGHT, WIDTH) and np.array_equal(images, again) and abs(images).max() <= 1
    assert all(set(text) <= set(CHARACTERS) for text in texts) and not set(WORDS["test"]) & set(WORDS["train"])


def test_what_was_read_is_counted():
    classes = [1 + CHARACTERS.index(each) if each else 0 for each in ("a", "a", "", "a", " ", "b", "b")]
    assert text_of(np.eye(1 + len(CHARACTERS))[classes]) == "aa b"
    assert scores(["a b", "abd"], ["ab", "abcd"]) == {"lines": 0.5, "characters": 5 / 6}


def test_the_page_in_docs_is_made_again_from_its_results():
    assert RESULTS.with_suffix(".md").read_text() == written(json.loads(RESULTS.read_text()))
