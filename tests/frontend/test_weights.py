"""Weights of every kind of source are the same dense arrays, and files that are not plain data are refused."""

import io
import zipfile

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn.utils import parametrize, prune

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 1, groups=2))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def pruned(net):
    prune.l1_unstructured(net.body[0], "weight", 0.5)
    return net


def export(module, path, shape=(1, 3, 8, 8)):
    torch.export.save(torch.export.export(module, (torch.zeros(shape),)), path)
    return path


def onnx_model(weight, name="", node=""):
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", name], ["y"], name=node)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, weight.shape[1], 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, name)],
    )
    graph.output[0].type.tensor_type.shape.SetInParent()
    for _ in range(4):
        graph.output[0].type.tensor_type.shape.dim.add()
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_module(net):
    weights = ModelSource(net).weights()
    assert list(weights) == ["body.0", "body.2", "head"]
    np.testing.assert_array_equal(weights["body.0"], net.body[0].weight.detach().numpy())
    assert weights["body.2"].shape == (6, 2, 1, 1)
    assert weights["head"].shape == (2, 6)


def test_arrays_are_copies(net):
    ModelSource(net).weights()["body.0"][:] = 7
    assert not (net.body[0].weight == 7).any()


def test_mask_is_applied_and_left_alone(pruned):
    weight = ModelSource(pruned).weights()["body.0"]
    assert (weight == 0).mean() == pytest.approx(0.5, abs=0.01)
    np.testing.assert_array_equal(weight, (pruned.body[0].weight_orig * pruned.body[0].weight_mask).detach().numpy())
    assert prune.is_pruned(pruned)


def test_mask_counts_after_a_step_without_forward(pruned):
    with torch.no_grad():
        pruned.body[0].weight_orig.add_(1)
    weight = ModelSource(pruned).weights()["body.0"]
    np.testing.assert_array_equal(weight, (pruned.body[0].weight_orig * pruned.body[0].weight_mask).detach().numpy())


def test_parametrised_weight(net):
    class Halve(nn.Module):
        def forward(self, weight):
            return weight / 2

    before = ModelSource(net).weights()["body.0"]
    parametrize.register_parametrization(net.body[0], "weight", Halve())
    weights = ModelSource(net).weights()
    assert sorted(weights) == ["body.0", "body.2", "head"]
    np.testing.assert_array_equal(weights["body.0"], before / 2)


def test_a_file_agrees_with_the_module(pruned, tmp_path):
    expected = ModelSource(pruned).weights()
    weights = ModelSource(export(pruned, tmp_path / "m.pt2")).weights()
    assert set(weights) == set(expected)
    for layer, weight in weights.items():
        np.testing.assert_array_equal(weight, expected[layer])


def test_boolean_mask():
    module = nn.Module()
    module.c = nn.Module()
    module.c.register_parameter("weight_orig", nn.Parameter(torch.ones(2, 1, 1, 1)))
    module.c.register_buffer("weight_mask", torch.tensor([True, False]).reshape(2, 1, 1, 1))
    assert ModelSource(module).weights()["c"].ravel().tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "node", "layer"),
    [("conv1.weight", "/c/Conv", "conv1"), ("onnx::Conv_7", "/c/Conv", "/c/Conv"), ("w", "", "w")],
)
def test_onnx_names(name, node, layer, tmp_path):
    weight = np.arange(12, dtype=np.float32).reshape(2, 6, 1, 1)
    onnx.save(onnx_model(weight, name, node), tmp_path / "m.onnx")
    weights = ModelSource(tmp_path / "m.onnx").weights()
    assert list(weights) == [layer]
    np.testing.assert_array_equal(weights[layer], weight)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_weight_names_the_layer(net, value):
    with torch.no_grad():
        net.body[2].weight[1, 0, 0, 0] = value
    with pytest.raises(ModelError, match=r"layer body\.2: weight\[1, 0, 0, 0\] is not finite"):
        ModelSource(net).weights()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_given_in_float32(net, dtype):
    half = net.to(dtype)
    found = ModelSource(half).weights()["body.0"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, half.body[0].weight.detach().float().numpy())


def test_other_element_types_are_refused(net):
    with pytest.raises(ModelError, match=r"layer body\.0: .*allowed: float32"):
        ModelSource(net.to(torch.float64)).weights()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.onnx", None, "no such file"),
        ("m.h5", b"", "unknown kind of file, found .h5"),
        ("m.pth", b"", "this is a pickle"),
        ("m.onnx", b"garbage", "no valid ONNX model"),
        ("m.pt2", b"garbage", "cannot be read"),
    ],
)
def test_bad_files(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message) as raised:
        ModelSource(tmp_path / name).weights()
    assert "\n" not in str(raised.value)


def test_truncated_onnx(tmp_path):
    onnx.save(onnx_model(np.ones((2, 6, 1, 1), np.float32), "w"), tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="no valid ONNX model"):
        ModelSource(tmp_path / "m.onnx").weights()


def rewritten(path, change):
    """The archive `path` with its members passed through `change(name, content)`, members None left out."""
    source = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
    with zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = change(name, source.read(name))
            if content is not None:
                target.writestr(name, content)
    return path


class Touch:
    """Un-pickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pt2_with_a_pickle_is_refused(net, tmp_path):
    trap = tmp_path / "trap"
    buffer = io.BytesIO()
    torch.save((Touch(str(trap)),), buffer)
    path = export(net, tmp_path / "m.pt2")
    rewritten(path, lambda name, content: buffer.getvalue() if "sample_inputs" in name else content)
    with pytest.raises(ModelError, match="not plain tensors"):
        ModelSource(path).weights()
    assert not trap.exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"use_pickle": false', b'"use_pickle": true', "pickles can run code"),
        (b'"path_name": "weight_0"', b'"path_name": "opaque_obj_0"', "may run code"),
        (b"torch.ops.aten.relu.default", b"torch.ops.load_library", "no operator of ATen"),
        (b"torch.ops.aten.relu.default", b"torch.hub.load", "no operator of ATen"),
    ],
)
def test_pt2_that_could_run_code_is_refused(net, tmp_path, old, new, message):
    path = rewritten(export(net, tmp_path / "m.pt2"), lambda name, content: content.replace(old, new))
    with pytest.raises(ModelError, match=message):
        ModelSource(path).weights()


def test_pt2_with_a_library_is_refused(net, tmp_path):
    path = export(net, tmp_path / "m.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(archive.namelist()[0].split("/")[0] + "/data/aotinductor/model/x.so", b"")
    with pytest.raises(ModelError, match="may run code"):
        ModelSource(path).weights()


def test_pt2_with_dynamic_shapes_is_refused(net, tmp_path):
    shapes = {"x": {0: torch.export.Dim("n", max=9)}}
    torch.export.save(torch.export.export(net, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=shapes), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="dynamic shapes"):
        ModelSource(tmp_path / "m.pt2").weights()
