"""Compiling for several sizes: one artifact serves them, others are refused, and so is a model of one size."""

import numpy as np
import onnx
import pytest
import torch
import zoo
from onnxruntime import InferenceSession
from torch import nn
from torch.nn import functional

from tvm_sparse.compiler import build_model
from tvm_sparse.errors import InputError, ModelError, UsageError
from tvm_sparse.request.variant import variants_of
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.multi_shape_model import MultiShapeModel

pytestmark = pytest.mark.usefixtures("unoptimised")

SIZES = [(1, 4, 8, 8), (1, 4, 8, 16), (1, 4, 16, 16)]


class Head(nn.Module):
    """Fixed to one size by its last layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(4, 6, 3, padding=1), nn.Linear(6 * 8 * 8, 5)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


class Resizing(nn.Module):
    """Fixed to one size by what it resizes to."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        return y + functional.interpolate(functional.max_pool2d(y, 2), (8, 8))


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    """Half the size, and back: height and width are open."""
    path = tmp_path_factory.mktemp("sizes") / "m.onnx"
    rng = np.random.default_rng(0)
    shapes = {"w": (6, 4, 3, 3), "v": (2, 6, 1, 1)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights["scales"] = np.array([1, 1, 2, 2], np.float32)
    nodes = [
        ("Conv", ["x", "w"], ["c"], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("Relu", ["c"], ["r"], {}),
        ("Conv", ["r", "v"], ["d"], {}),
        ("Resize", ["d", "", "scales"], ["y"], {"mode": "nearest"}),
    ]
    onnx.save(zoo.onnx_model(nodes, weights, {"x": ("N", 4, "H", "W")}, {"y": ("N", 2, "H2", "W2")}), path)
    return path


@pytest.fixture(scope="module")
def saved(segmenter, tmp_path_factory):
    model = build_model.compile(segmenter, shapes={"x": SIZES}, compare=False)
    return artifact.save(model, tmp_path_factory.mktemp("artifact") / "net")


@pytest.mark.conformance
def test_usual_sizes(tmp_path):
    """A segmenter at the sizes of docs/deployment.md, pruned to 10%."""
    rng = np.random.default_rng(0)
    shapes = {"a": (16, 3, 3, 3), "b": (32, 16, 3, 3), "c": (32, 32, 3, 3), "d": (8, 32, 1, 1)}
    weights = {
        name: (rng.standard_normal(shape) / 8 * (rng.random(shape) < 0.1)).astype(np.float32)
        for name, shape in shapes.items()
    }
    half, same = {"strides": [2, 2], "pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1]}
    weights["scales"] = np.array([1, 1, 4, 4], np.float32)
    nodes = []
    for name, before, attributes in (("a", "x", half), ("b", "ar", half), ("c", "br", same)):
        nodes += [("Conv", [before, name], [f"{name}o"], attributes), ("Relu", [f"{name}o"], [f"{name}r"], {})]
    nodes += [("Add", ["br", "cr"], ["s"], {}), ("Conv", ["s", "d"], ["e"], {})]
    nodes += [("Resize", ["e", "", "scales"], ["y"], {"mode": "linear"})]
    path = tmp_path / "segmenter.onnx"
    onnx.save(zoo.onnx_model(nodes, weights, {"x": (1, 3, "H", "W")}, {"y": (1, 8, "H2", "W2")}), path)
    sizes = [(1, 3, 224, 224), (1, 3, 320, 640), (1, 3, 640, 640)]
    model, session = build_model.compile(path, shapes={"x": sizes}), InferenceSession(path)
    model = artifact.load(artifact.save(model, tmp_path / "segmenter.sparse"))
    for x in zoo.inputs_of(sizes):
        want = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(model(x), want, rtol=1e-3, atol=1e-3 * abs(want).max())


def test_one_artifact_runs_each_size_and_says_which(segmenter, saved):
    model, session = artifact.load(saved), InferenceSession(segmenter)
    assert isinstance(model, MultiShapeModel) and not model.has_batches
    assert list(model.models) == ["1x4x8x8", "1x4x8x16", "1x4x16x16"]
    assert [line.split(": ")[0] for line in repr(model).splitlines() if line.startswith("1x")] == list(model.models)
    for x in zoo.inputs_of(SIZES):
        np.testing.assert_allclose(model(x), session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 4, 8, 9), (2, 4, 8, 8), (4, 8, 8)])
def test_another_size_is_refused_by_a_sentence(saved, shape):
    with pytest.raises(InputError) as caught:
        artifact.load(saved)(np.zeros(shape, np.float32))
    held = "(1, 4, 8, 8) or (1, 4, 8, 16) or (1, 4, 16, 16)"
    sentence = f"input x: wrong shape, found {shape}; allowed: {held}; compile the model for this size too"
    assert str(caught.value) == sentence


def test_batches_of_sizes(segmenter):
    model = build_model.compile(segmenter, shapes={"x": SIZES[:2]}, batch=[1, 3], compare=False)
    assert set(model.models) == {f"batch {count}, {size}" for count in (1, 3) for size in ("4x8x8", "4x8x16")}
    session = InferenceSession(segmenter)
    for x in zoo.inputs_of([(count, *shape[1:]) for count in (1, 2, 4) for shape in SIZES[:2]]):
        np.testing.assert_allclose(model(x), session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match=r"allowed: \(N, 4, 8, 8\) or \(N, 4, 8, 16\), N the same"):
        model(np.zeros(SIZES[2], np.float32))


def test_a_torch_module_names_its_inputs_like_forward():
    module = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU()).eval()
    model = build_model.compile(module, torch.zeros(SIZES[0]), shapes={"input": SIZES[:2]})
    for x in map(torch.from_numpy, zoo.inputs_of(SIZES[:2])):
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(ModelError, match="no such input, found x; allowed: input"):
        build_model.compile(module, torch.zeros(SIZES[0]), shapes={"x": SIZES})


@pytest.mark.parametrize(
    ("module", "where"), [(Head(), "layer fc: .*size that this layer"), (Resizing(), "model: .* length 8")]
)
def test_a_torch_module_of_one_size_is_refused(module, where):
    with pytest.raises(ModelError, match=where):
        build_model.compile(module.eval(), torch.zeros(SIZES[0]), shapes={"x": SIZES[1]})


def test_an_onnx_file_of_one_size_is_refused_by_the_name_of_the_node(tmp_path):
    weights = {"w": np.ones((4 * 8 * 8, 5), np.float32)}
    nodes = [("Flatten", ["x"], ["f"], {}), ("MatMul", ["f", "w"], ["y"], {})]
    onnx.save(zoo.onnx_model(nodes, weights, {"x": ("N", 4, "H", "W")}, {"y": ("N", 5)}), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"op_type:MatMul.*inputs of the size that it was made for"):
        build_model.compile(tmp_path / "m.onnx", shapes={"x": SIZES[:2]})


class Flat(nn.Module):
    """Makes two samples of one that is twice as large."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4 * 8 * 8, 5)

    def forward(self, x):
        return self.fc(x.reshape(-1, 4 * 8 * 8))


def test_a_head_behind_a_reshape_is_refused():
    with pytest.raises(ModelError, match=r"model at 1x4x8x16: .* number of samples .*\(2, 5\)"):
        build_model.compile(Flat().eval(), torch.zeros(SIZES[0]), shapes={"x": SIZES[:2]})


def test_a_program_has_the_size_it_was_exported_with():
    program = zoo.export_quietly(nn.Conv2d(4, 6, 3).eval(), zoo.inputs_of(SIZES[:1]))
    with pytest.raises(ModelError, match=r"input input was exported with another shape, found \(1, 4, 8, 8\)"):
        build_model.compile(program, shapes={"input": SIZES[1]})


def test_shapes_of_several_inputs_belong_together():
    names = [each.name for each in variants_of({"x": [(1, 2), (1, 3)], "y": [(1, 4), (1, 5)], "z": (1, 6)}, None)]
    assert names == ["1x2 and 1x4", "1x3 and 1x5"]
    assert [each.name for each in variants_of({"x": [(1, 2), (7, 2)]}, [8])] == ["batch 8, 2"]
    assert [each.name for each in variants_of({"x": (1, 2)}, None)] == [""]
    with pytest.raises(UsageError, match="found 2 of x, 3 of y"):
        variants_of({"x": [(1,), (2,)], "y": [(1,), (2,), (3,)]}, None)
