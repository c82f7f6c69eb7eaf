"""Compile a pruned ONNX file, call it with NumPy arrays, and see what computes each layer.

    python onnx_file.py [MODEL.onnx]

Without a file it writes a small pruned network first.
"""

import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_sparse as ts


def write_network(path):
    """A 3x3 convolution of 32 channels, 90% zeros, and a ReLU."""
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(32, 32, 3, 3)) * (generator.random((32, 32, 3, 3)) < 0.1)
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["conv"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["y"]),
    ]
    shape = [1, 32, 14, 14]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight.astype(np.float32), "weight")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


if len(sys.argv) > 1:
    path = sys.argv[1]
else:
    path = "network.onnx"
    write_network(path)

fast = ts.compile(path, target=os.environ.get("TVM_SPARSE_TARGET", "cpu"))
print(fast.report_text())

model = onnx.load(path)
shapes = [[axis.dim_value for axis in each.type.tensor_type.shape.dim] for each in model.graph.input]
y = fast(*[np.zeros(shape, np.float32) for shape in shapes])
print("result:", y.shape)
