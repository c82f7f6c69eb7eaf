"""Compiling for several batches: what can be, what is refused, and that samples must not depend on each other."""

import numpy as np
import onnx
import pytest
import torch
import zoo
from parameters import sampled
from torch import nn

from tvm_sparse.compiler import build_model
from tvm_sparse.errors import ModelError, UsageError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.runtime.multi_shape_model import MultiShapeModel

pytestmark = pytest.mark.usefixtures("unoptimised")

Y = (1, 6, 7, 7)


def onnx_file(path, nodes, weights, output, shape=zoo.X):
    onnx.save(zoo.onnx_model(nodes, weights, {"x": shape}, {"y": output}), path)
    return path


WEIGHT = np.random.default_rng(0).standard_normal((6, 4, 3, 3)).astype(np.float32)
CONV = ("Conv", ["x", "w"], ["c"], {})


@pytest.mark.parametrize("shape", [zoo.X, ("N", *zoo.X[1:])], ids=["fixed", "open"])
def test_an_onnx_file(tmp_path, shape):
    nodes = [CONV, ("Relu", ["c"], ["y"], {})]
    path = onnx_file(tmp_path / "m.onnx", nodes, {"w": WEIGHT}, (shape[0], *Y[1:]), shape)
    model = build_model.compile(path, batch=(1, 3))
    (x,) = zoo.inputs_of([(5, *zoo.X[1:])])
    want = nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(WEIGHT)).relu()
    np.testing.assert_allclose(model(x), want, rtol=1e-4, atol=1e-4)
    assert model.batches == (1, 3)


def test_shapes_are_given_for_what_is_open_beside_the_batch(tmp_path):
    nodes, shape = [CONV, ("Relu", ["c"], ["y"], {})], ("N", 4, "H", "W")
    path = onnx_file(tmp_path / "m.onnx", nodes, {"w": WEIGHT}, ("N", 6, "P", "Q"), shape)
    layers = prepare(path, shapes={"x": (1, 4, 8, 10)}, batch=3).layers
    assert [layer.spec.input_shape for layer in layers] == [(3, 4, 8, 10)]
    with pytest.raises(ModelError, match="input x has no fixed shape"):
        prepare(path, batch=3)


def test_an_output_that_has_no_batch_is_refused(tmp_path):
    """The file says that there is one sample: [1, -1] makes one row of all."""
    nodes = [CONV, ("Reshape", ["c", "s"], ["y"], {})]
    path = onnx_file(tmp_path / "m.onnx", nodes, {"w": WEIGHT, "s": np.array([1, -1])}, (1, 294))
    assert not isinstance(build_model.compile(path), MultiShapeModel)
    with pytest.raises(
        ModelError, match=r"batch 2 was asked for, and output 0 has .*, found shape \(1, 588\); allowed"
    ):
        build_model.compile(path, batch=[1, 2])


def test_a_program_has_the_batch_it_was_exported_with(tmp_path):
    module, _ = zoo.TORCH["batch3"]
    program = zoo.export_quietly(module, zoo.inputs_of([(3, *zoo.X[1:])]))
    torch.export.save(program, tmp_path / "m.pt2")
    for source in (program, tmp_path / "m.pt2"):
        assert build_model.compile(source, batch=3).batches == (3,)
        with pytest.raises(ModelError, match=r"batch 4 was asked for, and input \w+ .*pass the torch module"):
            build_model.compile(source, batch=[3, 4])


@pytest.mark.parametrize("batch", [0, [], [1, -1], [1.5], [True], "8"])
def test_sizes_are_whole_numbers(batch):
    with pytest.raises(UsageError, match="batch: is not usable, found"):
        build_model.compile(zoo.TORCH["plain"][0], torch.zeros(zoo.X), batch=batch)


class Mixing(nn.Module):
    """Computes samples of a convolution from each other, or from their places."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = zoo.Chain(zoo.conv()), function

    def forward(self, x):
        return self.function(self.conv(x))


MIXING = {
    "mean": lambda y: y - y.mean(0, keepdim=True),
    "roll": lambda y: y.roll(1, 0),
    "the first": lambda y: y + y[:1],
    "those before": lambda y: y.cumsum(0),
    "count": lambda y: y / y.shape[0],
    "places": lambda y: y + torch.arange(y.shape[0]).reshape(-1, 1, 1, 1),
}


# Each at several batches or at one, by turns.
MIXED = [*((by, (1, 4)) for by in MIXING), ("roll", (4,)), ("count", (4,)), *((by, (1,)) for by in MIXING)]


@pytest.mark.parametrize(("by", "batch"), sampled(MIXED, [*MIXED[:6:2], *MIXED[6:8], *MIXED[9::2]]))
def test_samples_that_depend_on_each_other_are_refused(by, batch):
    with pytest.raises(ModelError, match="what comes out for a sample depends on the others of its batch"):
        build_model.compile(Mixing(MIXING[by]).eval(), torch.zeros(zoo.X), batch=list(batch), compare=True)
