"""Functions that are no blocks of loops, such as sorts and scans, compile as they are, for a CPU and for a GPU."""

import numpy as np
import onnx
import onnxruntime
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper
from parameters import sampled

import tvm_sparse

X = np.array([[1, 3, 3, -2, 3, 0, 5, 5, 1, 2], [4, 4, 4, 4, 1, 0, 9, 9, -9, 2]], np.float32)
INDICES, UPDATES = np.array([[1, 0, 9], [3, 2, 0]], np.int64), np.ones((2, 3), np.float32)
# Operator -> its name, constants, outputs, attributes; values are equal in many places.
NODES = {
    "largest": ("TopK", [np.array([4])], ["y", "i"], {}),
    "smallest": ("TopK", [np.array([4])], ["y", "i"], {"largest": 0}),
    "first column": ("TopK", [np.array([1])], ["y", "i"], {"axis": 0}),
    "sums": ("CumSum", [np.array(1)], ["y"], {}),
    "sums from behind": ("CumSum", [np.array(-2)], ["y"], {"reverse": 1, "exclusive": 1}),
    "scatter": ("ScatterElements", [INDICES, UPDATES], ["y"], {"axis": 1}),
    "scattered sums": ("ScatterElements", [INDICES, UPDATES], ["y"], {"axis": 1, "reduction": "add"}),
    "first largest": ("ArgMax", [], ["i"], {"axis": 1}),
    "last largest": ("ArgMax", [], ["i"], {"axis": 1, "select_last_index": 1}),
    "first smallest": ("ArgMin", [], ["i"], {"axis": 0, "keepdims": 0}),
}


def model(name):
    operator, constants, outputs, attributes = NODES[name]
    weights = {f"c{index}": each for index, each in enumerate(constants)}
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *weights], outputs, **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(each, TensorProto.INT64 if each == "i" else 1, None) for each in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


@pytest.fixture(params=NODES)
def path(request, tmp_path):
    onnx.save(model(request.param), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_they_are_those_of_onnx_runtime_on_a_cpu(path):
    found = tvm_sparse.compile(path, target=zoo.UNOPTIMISED)(X)
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X})
    for one, other in zip(found if isinstance(found, list | tuple) else [found], expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("path", sampled(NODES, ["largest", "sums", "scatter", "first smallest"]), indirect=True)
def test_they_compile_for_a_gpu(path):
    compiled = tvm_sparse.compile(path, target={"kind": "cuda", "arch": "sm_90"})
    assert [each.dtype for each in compiled.signature.inputs] == ["float32"]
