"""Networks as exporters write them: of any opset, with an open batch, with shapes that the graph computes."""

import warnings

import numpy as np
import onnx
import pytest
import torch
import zoo
from onnx import version_converter
from parameters import sampled
from test_passes import assert_same, operators
from torch import nn
from torch.nn import functional

from tvm_sparse.cli import main
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.prepare import prepare

X = (2, 3, 16, 16)


class Parts(nn.Module):
    """What many networks are made of: squeeze and excitation, channel shuffle, upsampling, padding, computed sizes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Hardswish())
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Hardsigmoid()
        )
        self.mix, self.up = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3)
        self.dropout, self.head = nn.Dropout(), nn.Linear(8, 5)
        with torch.no_grad():
            self.head.weight[:, ::2] = 0

    def forward(self, x):
        x = self.depthwise(self.stem(x))
        x = x * self.squeeze(x)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        x = torch.cat(x.chunk(2, 1)[::-1], 1)
        y = functional.interpolate(functional.max_pool2d(self.mix(x), 2), scale_factor=2)
        x = self.up(functional.pad(functional.silu(x + y), (1, 1, 1, 1)))
        x = functional.avg_pool2d(x, 2).mean((2, 3))
        return functional.softmax(self.head(self.dropout(x.view(x.size(0), -1))), 1)


def export(path, opset, is_open=False):
    """`Parts` as torch's TorchScript exporter writes it; old files list their weights among the inputs."""
    torch.manual_seed(0)
    settings = {"dynamic_axes": {"x": {0: "n", 2: "h", 3: "w"}}} if is_open else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Parts().eval(),
            (torch.zeros(X),),
            path,
            opset_version=opset,
            dynamo=False,
            input_names=["x"],
            keep_initializers_as_inputs=opset < 10,
            **settings,
        )
    return onnx.load(path)


# Opsets from and to which ONNX converts a file.
CONVERTED = [(9, 13), (13, 14), (13, 15), (13, 16), (17, 19), (13, 21)]
LAYERS = ["/stem/stem.0/Conv", "depthwise.0", "squeeze.1", "squeeze.3", "mix", "up", "head"]


def check(path, model, **options):
    prepared = prepare(path, **options)
    assert [layer.name for layer in prepared.layers] == LAYERS
    arrays = zoo.inputs_of([X])
    assert_same(prepared.mod, arrays, zoo.run_onnx(model, *arrays))


@pytest.mark.parametrize("opset", sampled([9, 10, 11, 12, 13, 17, 18, 20], [9, 13, 20]))
def test_exported(opset, tmp_path):
    check(tmp_path / "m.onnx", export(tmp_path / "m.onnx", opset))


@pytest.mark.parametrize(("opset", "newer"), sampled(CONVERTED, [(13, 21)]))
def test_converted(opset, newer, tmp_path):
    model = version_converter.convert_version(export(tmp_path / "old.onnx", opset), newer)
    onnx.save(model, tmp_path / "m.onnx")
    check(tmp_path / "m.onnx", model)


@pytest.mark.parametrize("opset", sampled([11, 17], [17]))
def test_shapes_that_the_graph_computes_are_known_once_the_inputs_are(opset, tmp_path):
    model = export(tmp_path / "m.onnx", opset, is_open=True)
    assert "Shape" in {node.op_type for node in model.graph.node}
    check(tmp_path / "m.onnx", model, shapes={"x": X})


def test_nothing_of_a_computed_shape_is_left(tmp_path):
    export(tmp_path / "m.onnx", 17, is_open=True)
    module = prepare(tmp_path / "m.onnx", shapes={"x": X}).mod
    assert not {"shape_of", "shape_to_tensor", "tensor_to_shape", "take"} & set(operators(module))


def open_shape(*sizes):
    model = onnx.ModelProto()
    model.CopyFrom(zoo.ONNX["auto_pad_upper"])
    for value in (model.graph.input[0], model.graph.output[0]):
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=True):
            dim.ClearField("dim_value")
            if isinstance(size, str):
                dim.dim_param = size
            else:
                dim.dim_value = size
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    return model


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (
            ("n", 4, 9, 9),
            "input x has no fixed shape, found (n, 4, 9, 9); allowed: positive numbers; give it as --batch 1 or "
            "--input-shape x:1,4,9,9, in Python as batch=1 or shapes={'x': (1, 4, 9, 9)}",
        ),
        (
            ("n", 4, "h", "w"),
            "input x has no fixed shape, found (n, 4, h, w); allowed: positive numbers; give it as --input-shape "
            "x:1,4,224,224, in Python as shapes={'x': (1, 4, 224, 224)}",
        ),
    ],
)
def test_an_open_shape_is_refused_with_what_to_write(sizes, sentence, tmp_path, capsys):
    path = tmp_path / "m.onnx"
    onnx.save(open_shape(*sizes), path)
    assert main.main(["inspect", str(path)]) == 3
    assert capsys.readouterr().err == f"tvm-sparse: {path}: {sentence}\n"
    # What the sentence says works.
    flags = ["--batch", "1"] if "--batch" in sentence else ["--input-shape", "x:1,4,224,224"]
    assert main.main(["inspect", str(path), *flags]) == 0


def single(op, opset, weights=None, out=None, **attributes):
    """A model of one operator, called as it, on (1, 4, 9, 9)."""
    model = zoo.onnx_model([("Relu", ["x"], ["y"], {})], weights or {}, {"x": zoo.X}, {"y": out})
    model.graph.node[0].CopyFrom(onnx.helper.make_node(op, ["x", *(weights or {})], ["y"], name=op, **attributes))
    model.opset_import[0].version = opset
    onnx.checker.check_model(model)
    return model


def scales(h, w):
    return {"s": np.float32([1, 1, h, w])}


TWO, NONE = {"kernel_shape": [2, 2], "strides": [2, 2]}, {"r": np.zeros(0, np.float32)}
SIZES = {"r": np.zeros(0, np.float32), "s": np.zeros(0, np.float32), "z": np.array([1, 4, 15, 11])}
T = {"w": zoo._random(4, 4, 3, 3)}
# What TVM's importer computes wrongly, or not at all, of the operator as it stands.
REWRITTEN = {
    "max_pool_lower": single("MaxPool", 13, out=(1, 4, 5, 5), auto_pad="SAME_LOWER", **TWO),
    "max_pool_upper": single("MaxPool", 13, out=(1, 4, 5, 5), auto_pad="SAME_UPPER", **TWO),
    "average_pool_lower": single("AveragePool", 13, out=(1, 4, 5, 5), auto_pad="SAME_LOWER", **TWO),
    "upsample_nearest": single("Upsample", 9, scales(2, 3), (1, 4, 18, 27), mode="nearest"),
    "upsample_linear": single("Upsample", 9, scales(2, 2), (1, 4, 18, 18), mode="linear"),
    "resize_nearest": single("Resize", 10, scales(3, 2), (1, 4, 27, 18), mode="nearest"),
    "resize_linear": single("Resize", 10, scales(2, 2), (1, 4, 18, 18), mode="linear"),
    "resize_to_sizes": single("Resize", 11, SIZES, (1, 4, 15, 11), mode="linear"),
    "slice": single("Slice", 9, out=(1, 4, 8, 2), axes=[2, 3], starts=[1, -4], ends=[100, -2]),
    "transposed": single("ConvTranspose", 13, T, (1, 4, 18, 18), strides=[2, 2], output_shape=[18, 18]),
    "transposed_upper": single(
        "ConvTranspose", 13, T, (1, 4, 18, 18), strides=[2, 2], output_shape=[18, 18], auto_pad="SAME_UPPER"
    ),
}


def with_function():
    """A convolution whose activation is a function of the model."""
    model = zoo.onnx_model(
        [("Conv", ["x", "w"], ["t"], {"pads": [1, 1, 1, 1]}), ("Relu", ["t"], ["y"], {})], T, {"x": zoo.X}, {"y": zoo.X}
    )
    model.graph.node[1].CopyFrom(onnx.helper.make_node("Swish", ["t"], ["y"], domain="own"))
    body = [onnx.helper.make_node("Sigmoid", ["a"], ["s"]), onnx.helper.make_node("Mul", ["a", "s"], ["b"])]
    opsets = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("own", "Swish", ["a"], ["b"], body, opsets))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    onnx.checker.check_model(model)
    return model


REWRITTEN["function"] = with_function()


@pytest.mark.parametrize("name", REWRITTEN)
def test_operators_that_are_rewritten(name, tmp_path):
    onnx.save(REWRITTEN[name], tmp_path / "m.onnx")
    arrays = zoo.inputs_of([zoo.X])
    assert_same(prepare(tmp_path / "m.onnx").mod, arrays, zoo.run_onnx(REWRITTEN[name], *arrays))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            single("ConvTranspose", 13, T, (1, 4, 21, 21), strides=[2, 2], output_shape=[21, 21]),
            r"node ConvTranspose: its output_shape is too large, found \(21, 21\); allowed: up to \(20, 20\)",
        ),
    ],
)
def test_operators_that_are_refused(model, sentence, tmp_path):
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=sentence):
        ModelSource(tmp_path / "m.onnx").relax_module()
