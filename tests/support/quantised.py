"""Quantised networks and nodes in the forms that files have."""

import logging

import numpy as np
import torch
import zoo
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

SHAPE = (1, 3, 12, 12)
FORMATS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}
# Activations, weights.
TYPES = {
    "u8s8": (QuantType.QUInt8, QuantType.QInt8),
    "u8u8": (QuantType.QUInt8, QuantType.QUInt8),
    "s8s8": (QuantType.QInt8, QuantType.QInt8),
}
STEP = np.float32(0.05)


class _Samples(CalibrationDataReader):
    def __init__(self):
        self.left = iter([{"x": sample(seed)} for seed in range(4)])

    def get_next(self):
        return next(self.left, None)


def sample(seed):
    """An input."""
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def networks():
    """Small networks by name: their zeros in 3x3 and 1x1 convolutions, depthwise, linear."""
    return {
        "residual": zoo.Chain(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            zoo.Residual(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Identity()),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        ),
        "silu": zoo.Chain(
            nn.Conv2d(3, 8, 3, stride=2),
            nn.SiLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.LeakyReLU(0.1),
            nn.AvgPool2d(2),
            nn.Conv2d(8, 4, 1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(16, 5),
            nn.Softmax(1),
        ),
    }


def quantised_file(folder, network, form, per_channel, types):
    """The path of a network as ONNX Runtime quantises it."""
    plain, path = folder / "plain.onnx", folder / "quantised.onnx"
    torch.onnx.export(
        networks()[network], (torch.zeros(SHAPE),), str(plain), dynamo=False, opset_version=13, input_names=["x"]
    )
    logging.disable(logging.WARNING)
    activations, weights = TYPES[types]
    quantize_static(
        str(plain),
        str(path),
        _Samples(),
        quant_format=FORMATS[form],
        per_channel=per_channel,
        activation_type=activations,
        weight_type=weights,
    )
    logging.disable(logging.NOTSET)
    return path


_RANDOM = np.random.default_rng(0)
# Names of constants -> their values; weights of 128 are zeros.
CONSTANTS = {
    "s": STEP,
    "t": np.float32(0.02),
    "u": np.float32(0.07),
    "z": np.uint8(128),
    "v": np.uint8(100),
    "w": _RANDOM.integers(100, 156, (3, 4, 3, 3)).astype(np.uint8),
    "ws": np.float32([0.01, 0.02, 0.03]),
    "wz": np.uint8([128, 120, 130]),
    "b": _RANDOM.integers(-900, 900, 3).astype(np.int32),
    "m": _RANDOM.integers(-50, 50, (4, 5)).astype(np.int8),
    "mz": np.int8(3),
    "mb": _RANDOM.integers(-900, 900, 5).astype(np.int32),
    "fb": _RANDOM.standard_normal(5).astype(np.float32),
    "even": _RANDOM.integers(0, 2, (1, 4, 5, 5)).astype(bool),
}
_Q, _P, _ROWS = ("q", "s", "z"), ("p", "t", "v"), ("rows", "s", "z")
# Output -> its node, of com.microsoft unless it begins with a dot; `q` and `p` are of (1, 4, 5, 5), `rows` of (5, 4).
NODES = {
    "conv": (".QLinearConv", (*_Q, "w", "ws", "wz", "u", "z", "b"), {"pads": [1, 1, 1, 1]}),
    "conv_sums": (".ConvInteger", ("q", "w", "z", "z"), {"strides": [2, 2]}),
    "product_sums": (".MatMulInteger", ("rows", "m", "z", "mz"), {}),
    "product": (".QLinearMatMul", (*_ROWS, "m", "t", "mz", "u", "z"), {}),
    "largest": (".MaxPool", ("q",), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "gemm": ("QGemm", (*_ROWS, "m", "t", "mz", "mb", "u", "z"), {"alpha": 1.0}),
    "gemm_float": ("QGemm", (*_ROWS, "m", "t", "mz"), {"alpha": 0.5}),
    "sum": ("QLinearAdd", (*_Q, *_P, "u", "v"), {}),
    "times": ("QLinearMul", (*_Q, *_P, "u", "v"), {}),
    "sigmoid": ("QLinearSigmoid", (*_Q, "t", "v"), {}),
    "leaky": ("QLinearLeakyRelu", (*_Q, "u", "v"), {"alpha": 0.1}),
    "softmax": ("QLinearSoftmax", (*_Q, "t", "v"), {"axis": 1, "opset": 13}),
    "mean": ("QLinearGlobalAveragePool", (*_Q, "t", "v"), {}),
    "pool": ("QLinearAveragePool", (*_Q, "t", "v"), {"kernel_shape": [2, 2]}),
    "joined": ("QLinearConcat", ("u", "v", *_Q, *_P), {"axis": 1}),
    "choice": ("QLinearWhere", ("even", *_Q, *_P, "u", "v"), {}),
    "scaled": ("MatMulIntegerToFloat", ("rows", "m", "s", "t", "z", "mz", "fb"), {}),
    "dynamic": ("DynamicQuantizeMatMul", ("matrix", "m", "t", "mz", "fb"), {}),
}
_INT32, _FLOAT = ("conv_sums", "product_sums"), ("gemm_float", "scaled", "dynamic")


def node_model(names=tuple(NODES), nodes=NODES):
    """An `onnx.ModelProto` of some of `nodes`, on two quantised tensors and a matrix."""
    made = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QuantizeLinear", ["y", "t", "v"], ["p"]),
        helper.make_node("QuantizeLinear", ["matrix", "s", "z"], ["rows"]),
    ]
    outputs = []
    for name in names:
        operator, inputs, attributes = nodes[name]
        domain = "" if operator.startswith(".") else "com.microsoft"
        made.append(helper.make_node(operator.strip("."), inputs, [name], name=name, domain=domain, **attributes))
        kind = TensorProto.INT32 if name in _INT32 else TensorProto.FLOAT if name in _FLOAT else TensorProto.UINT8
        outputs.append(helper.make_tensor_value_info(name, kind, None))
    shapes = {"x": (1, 4, 5, 5), "y": (1, 4, 5, 5), "matrix": (5, 4)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()]
    graph = helper.make_graph(made, "graph", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node_inputs():
    """Arrays for the inputs of `node_model`."""
    rng = np.random.default_rng(1)
    return [rng.uniform(-6, 6, shape).astype(np.float32) for shape in ((1, 4, 5, 5), (1, 4, 5, 5), (5, 4))]


def sparseml_model(weight):
    """A layer as SparseML exports it: integers, a bias in them, and a scale; a residual is added in floats."""
    constants = {
        **{"s": np.float32(0.05), "z": np.uint8(110), "wz": np.uint8(128), "scale": np.float32(0.002)},
        **{"c.weight_quantized": weight, "b": _RANDOM.integers(-99, 99, (1, 4, 1, 1)).astype(np.int32)},
    }
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
        ("ConvInteger", ["q", "c.weight_quantized", "z", "wz"], ["sums"], {"pads": [1, 1, 1, 1]}),
        ("Add", ["sums", "b"], ["biased"], {}),
        ("Cast", ["biased"], ["float"], {"to": TensorProto.FLOAT}),
        ("Mul", ["float", "scale"], ["scaled"], {}),
        ("DequantizeLinear", ["q", "s", "z"], ["d"], {}),
        ("Add", ["scaled", "d"], ["sum"], {}),
        ("Relu", ["sum"], ["r"], {}),
        ("QuantizeLinear", ["r", "s", "z"], ["p"], {}),
        ("DequantizeLinear", ["p", "s", "z"], ["y"], {}),
    ]
    return zoo.onnx_model(nodes, constants, {"x": (1, 4, 7, 7)}, {"y": (1, 4, 7, 7)})


def residual_model(form):
    """Two layers, whose second's result is added to the first's input in floats; uint8 weights with zero point 128.

    `form` is sparseml, or qlinear as ONNX Runtime saves it.
    """
    shapes = {"v": (8, 8, 3, 3), "w": (8, 8, 1, 1)}
    constants = {name: _RANDOM.integers(68, 188, shape).astype(np.uint8) for name, shape in shapes.items()}
    biases = {name: _RANDOM.integers(-99, 99, 8).astype(np.int32) for name in ("b", "c")}
    scales = {"s": 0.05, "u": 0.04, "ws": 0.01, "us": 0.002, "vs": 0.0015}
    constants |= {name: np.float32(value) for name, value in scales.items()}
    constants |= {"z": np.uint8(110), "zero": np.uint8(0), "wz": np.uint8(128)}
    if form == "sparseml":
        constants |= {name: bias.reshape(1, 8, 1, 1) for name, bias in biases.items()}
        constants["shift"] = np.linspace(-0.2, 0.4, 8, dtype=np.float32).reshape(1, 8, 1, 1)
        layers = [
            *_integer_layer("q", "z", "v", "b", "us", "f", pads=[1, 1, 1, 1]),
            # A bias in floats, as torch's quantisers leave it.
            ("Add", ["f", "shift"], ["shifted"], {}),
            ("Relu", ["shifted"], ["g"], {}),
            ("QuantizeLinear", ["g", "u", "zero"], ["h"], {}),
            *_integer_layer("h", "zero", "w", "c", "vs", "e"),
        ]
    else:
        constants |= biases
        layers = [
            ("QLinearConv", ["q", "s", "z", "v", "ws", "wz", "u", "zero", "b"], ["h"], {"pads": [1, 1, 1, 1]}),
            ("QLinearConv", ["h", "u", "zero", "w", "ws", "wz", "s", "z", "c"], ["i"], {}),
            ("DequantizeLinear", ["i", "s", "z"], ["e"], {}),
        ]
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
        *layers,
        ("DequantizeLinear", ["q", "s", "z"], ["d"], {}),
        ("Add", ["e", "d"], ["sum"], {}),
        ("Relu", ["sum"], ["r"], {}),
        ("QuantizeLinear", ["r", "s", "z"], ["p"], {}),
        ("DequantizeLinear", ["p", "s", "z"], ["y"], {}),
    ]
    return zoo.onnx_model(nodes, constants, {"x": (1, 8, 7, 7)}, {"y": (1, 8, 7, 7)})


def sparseml_network(image=64, width=8):
    """A ResNet-50 as SparseML exports it, narrow: 53 QLinearConv, residuals added in floats, weights of 85% zeros, 128.

    The number of layers is the second result.
    """
    rng, nodes, constants = np.random.default_rng(0), [("QuantizeLinear", ["x", "s", "z"], ["q"], {})], {}
    constants |= {"s": np.float32(0.02), "z": np.uint8(128), "zero": np.uint8(0), "step": np.float32(0.02)}

    def layer(name, data, outputs, inputs, size, stride, zero="zero", given=("step", "zero")):
        weight = rng.normal(0, 40, (outputs, inputs, size, size)).clip(-128, 127)
        if inputs % 4 == 0:
            weight *= np.repeat(rng.random((outputs, inputs // 4, size, size)) < 0.15, 4, axis=1)
        scale = 1 / max(1.0, np.sqrt((weight**2).sum() / outputs))
        constants.update({f"{name}w": (weight + 128).astype(np.uint8), f"{name}s": np.float32(scale)})
        constants[f"{name}b"] = rng.integers(-500, 500, outputs).astype(np.int32)
        weights = [f"{name}w", f"{name}s", "z", "step", zero, f"{name}b"]
        pads = {"pads": [size // 2] * 4, "strides": [stride] * 2}
        nodes.append(("QLinearConv", [data, *given, *weights], [name], pads))
        return name

    data, channels = layer("stem", "q", width, 3, 7, 2, given=("s", "z")), width
    nodes.append(("MaxPool", [data], ["pool"], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}))
    data = "pool"
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width << stage
        for block in range(blocks):
            name, stride = f"l{stage}_{block}", 2 if stage and not block else 1
            first = layer(f"{name}a", data, inner, channels, 1, 1)
            second = layer(f"{name}b", first, inner, inner, 3, stride)
            ends = [(layer(f"{name}c", second, 4 * inner, inner, 1, 1, "z"), "z"), (data, "zero")]
            if not block:
                ends[1] = (layer(f"{name}d", data, 4 * inner, channels, 1, stride, "z"), "z")
            nodes += [("DequantizeLinear", [each, "step", zero], [f"{name}{each}f"], {}) for each, zero in ends]
            nodes.append(("Add", [f"{name}{each}f" for each, _ in ends], [f"{name}sum"], {}))
            nodes.append(("Relu", [f"{name}sum"], [f"{name}relu"], {}))
            nodes.append(("QuantizeLinear", [f"{name}relu", "step", "zero"], [name], {}))
            data, channels = name, 4 * inner
    nodes += [("DequantizeLinear", [data, "step", "zero"], ["f"], {}), ("GlobalAveragePool", ["f"], ["y"], {})]
    model = zoo.onnx_model(nodes, constants, {"x": (1, 3, image, image)}, {"y": (1, channels, 1, 1)})
    return model, sum(operator == "QLinearConv" for operator, *_ in nodes)


def _integer_layer(data, zero, weight, bias, scale, result, **attributes):
    """A ConvInteger, its bias in int32, and its scale."""
    return [
        ("ConvInteger", [data, weight, zero, "wz"], [f"{result}_sums"], attributes),
        ("Add", [f"{result}_sums", bias], [f"{result}_biased"], {}),
        ("Cast", [f"{result}_biased"], [f"{result}_float"], {"to": TensorProto.FLOAT}),
        ("Mul", [f"{result}_float", scale], [result], {}),
    ]
