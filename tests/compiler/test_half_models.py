"""Models in half precision, compiled and run: torch tensors in and out, decisions that name it, and what it costs."""

import copy
import json

import numpy as np
import onnx
import pytest
import torch
import zoo
from torch import nn

import tvm_sparse
from tvm_sparse.cli import main
from tvm_sparse.compiler.checking.half_accuracy import Accuracy
from tvm_sparse.conv.dtypes import HALVES
from tvm_sparse.errors import InputError

pytestmark = pytest.mark.usefixtures("unoptimised")

ROUNDOFF = {"float16": 2**-11, "bfloat16": 2**-8}


class Net(nn.Module):
    """Two pruned convolutions, one with a residual, and a classifier."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.inner, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 10)
        for layer in (self.stem, self.inner):
            layer.weight.data *= torch.rand_like(layer.weight) < 0.1
        self.eval()

    def forward(self, x):
        y = torch.relu(self.norm(self.stem(x)))
        return self.head(torch.relu(self.inner(y) + y).mean((2, 3)))


NET, X = Net(), torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def relative(found, expected):
    return float((found.float() - expected).abs().max() / expected.abs().max())


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("is_cast", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
def test_torch_tensors_of_the_type_go_in_and_come_out(dtype, is_cast):
    kind = getattr(torch, dtype)
    if is_cast:
        fast = tvm_sparse.compile(NET, X, dtype=dtype)
    else:
        fast = tvm_sparse.compile(copy.deepcopy(NET).to(kind), X.to(kind))
    found = fast(X.to(kind))
    assert found.dtype == kind
    with torch.no_grad():
        assert 0 < relative(found, NET(X)) < 8 * ROUNDOFF[dtype]
    assert {row["precision"] for row in fast.report()} == {f"{dtype}, float32 sums"}
    with pytest.raises(InputError, match=f"wrong element type, found float32; allowed: {dtype}"):
        fast(X)


class Functions(nn.Module):
    """What is computed of exponentials, behind a bound variable in float32."""

    def forward(self, x):
        return torch.sigmoid(x), torch.tanh(x) + 1, torch.exp(x) * x, nn.functional.silu(x), nn.functional.gelu(x)


@pytest.mark.parametrize("dtype", HALVES)
def test_functions_of_exponentials(dtype):
    x = torch.linspace(-4, 4, 40).reshape(1, 1, 5, 8).to(getattr(torch, dtype))
    fast = tvm_sparse.compile(Functions().eval(), x.float(), dtype=dtype)
    for found, expected in zip(fast(x), Functions()(x.float()), strict=True):
        assert relative(found, expected) < 8 * ROUNDOFF[dtype]


@pytest.mark.parametrize("dtype", HALVES)
def test_an_artifact_and_arrays(dtype, tmp_path):
    tvm_sparse.save(tvm_sparse.compile(NET, X, dtype=dtype), tmp_path / "net.sparse")
    loaded = tvm_sparse.load(tmp_path / "net.sparse")
    x = X.numpy().astype(dtype)
    found = loaded(x)
    assert isinstance(found, np.ndarray)
    assert str(found.dtype) == dtype
    np.testing.assert_array_equal(found.astype(np.float32), loaded(X.to(getattr(torch, dtype))).float().numpy())


def test_float32_models_say_so():
    assert {row["precision"] for row in tvm_sparse.compile(NET, X).report()} == {"float32"}


def test_batches_of_a_half_model():
    fast = tvm_sparse.compile(NET, X, dtype="float16", batch=[1, 2])
    with torch.no_grad():
        assert relative(fast(X[:1].half()), NET(X[:1])) < 8 * ROUNDOFF["float16"]


def test_a_half_model_is_tuned_under_a_key_of_its_own(tmp_path, small_populations):
    log = tvm_sparse.tune(NET, X, log=tmp_path / "log.jsonl", trials=2, layers=["inner"], dtype="bfloat16")
    assert {record.spec.dtype for record in log.records} == {"bfloat16"}
    assert {record.status for record in log.records} == {"ok"}
    rows = {dtype: tvm_sparse.compile(NET, X, log=log, dtype=dtype).report()[1] for dtype in ("bfloat16", "float16")}
    assert rows["bfloat16"]["dense_time_us"] is not None
    assert rows["float16"]["dense_time_us"] is None


def as_onnx(path):
    """The convolution of `Net`'s stem and a mean over the map, as a file."""
    weight = NET.stem.weight.detach().numpy()
    nodes = [("Conv", ["x", "conv.weight"], ["t"], {"pads": [1, 1, 1, 1]}), ("GlobalAveragePool", ["t"], ["p"], {})]
    nodes.append(("Flatten", ["p"], ["y"], {}))
    onnx.save(zoo.onnx_model(nodes, {"conv.weight": weight}, {"x": (1, 3, 12, 12)}, {"y": (1, 16)}), path)


@pytest.mark.parametrize("dtype", HALVES)
def test_check_shows_the_accuracy_on_the_users_data(dtype, tmp_path, capsys):
    as_onnx(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((5, 3, 12, 12), np.float32))
    assert main.main(["check", "m.onnx", "--dtype", dtype, "--input", "x.npy", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (accuracy,) = document["inputs"][1]["accuracy"]
    assert accuracy["samples"] == 5
    assert 0 < accuracy["mean"] <= accuracy["largest"] < 8 * ROUNDOFF[dtype]
    assert accuracy["same_class"] >= 0.8
    assert all(layer["error"] <= 1 for layer in document["inputs"][1]["layers"])


def test_check_of_a_float32_model_has_no_accuracy(tmp_path, capsys):
    as_onnx(tmp_path / "m.onnx")
    assert main.main(["check", "m.onnx", "--json"]) == 0
    assert "accuracy" not in json.loads(capsys.readouterr().out)["inputs"][0]


def test_check_refuses_data_of_another_shape(tmp_path, capsys):
    as_onnx(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.zeros((5, 3, 10, 12), np.float32))
    assert main.main(["check", "m.onnx", "--input", "x.npy"]) == 3
    assert "input x has the wrong shape, found (5, 3, 10, 12)" in capsys.readouterr().err


def test_accuracy_counts_samples_whose_class_is_another():
    expected = np.array([[1.0, 2.0], [4.0, 3.0]])
    found = Accuracy.of("y", np.array([[1.0, 2.0], [3.0, 3.5]]), expected)
    assert (found.samples, found.same_class) == (2, 0.5)
    assert (found.largest, found.mean) == (0.25, (1.0 + 0.5) / 4 / 4)
    assert Accuracy.of("y", np.full((1, 2, 3), np.inf), np.ones((1, 2, 3))).to_json()["largest"] is None
