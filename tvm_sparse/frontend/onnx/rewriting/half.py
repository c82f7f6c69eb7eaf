"""ONNX models in half precision as float32 models of the same numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.frontend.onnx.graph.constants import array_of
from tvm_sparse.frontend.onnx.graph.nodes import every_graph
from tvm_sparse.frontend.optional_imports import onnx
from tvm_sparse.frontend.precision import Precision

# Attributes that hold an element type.
_TYPES = ("to", "dtype", "output_dtype")


def precision_of(where: str, model: Any) -> Precision:
    """In which types an `onnx.ModelProto` stores its tensors; ModelError where it mixes halves."""
    inputs = [_name(value.type.tensor_type.elem_type) for value in model.graph.input]
    outputs = [_name(value.type.tensor_type.elem_type) for value in model.graph.output]
    nodes = [node for graph in every_graph(model.graph) for node in graph.node]
    read = {name for node in nodes if node.op_type != "Cast" for name in node.input}
    # A constant that is only cast is compressed, and computed with in another type.
    stored = {_name(tensor.data_type) for name, tensor in _tensors(model) if name in read}
    return Precision.of(where, {*stored, *inputs}, inputs, outputs)


def widen(model: Any) -> None:
    """Make an `onnx.ModelProto` a float32 model of the same numbers, in place."""
    halves, wide = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16), onnx.TensorProto.FLOAT
    for _, tensor in _tensors(model):
        if tensor.data_type in halves:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array_of(tensor).astype(np.float32), tensor.name))
    for graph in every_graph(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in halves:
                value.type.tensor_type.elem_type = wide
        for attribute in (each for node in graph.node for each in node.attribute):
            if attribute.name in _TYPES and attribute.i in halves:
                attribute.i = wide


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """The constants of the graph, and tensors in attributes, such as ConstantOfShape's, by what they define."""
    for graph in every_graph(model.graph):
        yield from ((tensor.name, tensor) for tensor in graph.initializer)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t") and node.output:
                    yield node.output[0], attribute.t


def _name(element_type: int) -> str:
    """NumPy's name of an element type of ONNX; float32 for none and for unknown ones, which are refused elsewhere."""
    is_known = element_type and element_type in onnx.TensorProto.DataType.values()
    return str(onnx.helper.tensor_dtype_to_np_dtype(element_type)) if is_known else FLOAT32
