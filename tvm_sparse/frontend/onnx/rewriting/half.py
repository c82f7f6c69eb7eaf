"""ONNX models in half precision as float32 models of the same numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tvm_sparse.conv.dtypes import FLOAT32, HALVES
from tvm_sparse.frontend.onnx.graph.constants import array_of
from tvm_sparse.frontend.onnx.graph.nodes import every_graph, set_nodes
from tvm_sparse.frontend.optional_imports import onnx
from tvm_sparse.frontend.precision import Precision

# Attributes that hold an element type.
_TYPES = ("to", "dtype", "output_dtype")
# What says nothing of the type that is computed in: weights are compressed so.
_COMPRESSED = ("Cast", "Constant", "DequantizeLinear")
# What ends the name of a tensor that the model itself rounds.
_ROUNDED = " in half precision"


def precision_of(where: str, model: Any, types: Mapping[str, str] | None = None) -> Precision:
    """In which types an `onnx.ModelProto` stores its tensors; ModelError where it mixes halves.

    * `types`: what `types_of` gives, where that is known.
    """
    types = types_of(model) if types is None else types
    inputs = [_name(value.type.tensor_type.elem_type) for value in model.graph.input]
    outputs = [_name(value.type.tensor_type.elem_type) for value in model.graph.output]
    nodes = [node for graph in every_graph(model.graph) for node in graph.node]
    read = {name for node in nodes if node.op_type != "Cast" for name in node.input}
    # A constant that is only cast is compressed, and computed with in another type.
    stored = {_name(tensor.data_type) for name, tensor in _tensors(model) if name in read}
    stored |= {types.get(node.output[0], "") for node in nodes if node.op_type not in _COMPRESSED and node.output}
    return Precision.of(where, {*stored, *inputs}, inputs, outputs)


def types_of(model: Any) -> dict[str, str]:
    """Element types of the tensors of an `onnx.ModelProto`, of all that ONNX infers; of one without halves none."""
    halves = _halves()
    values = [value for graph in every_graph(model.graph) for value in (*graph.input, *graph.value_info)]
    known = [value.type.tensor_type.elem_type for value in values] + [each.data_type for _, each in _tensors(model)]
    known += [attribute.i for _, attribute in _type_attributes(model)]
    if not any(each in halves for each in known):
        return {}
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    # It is refused elsewhere, by what is wrong with it.
    except (onnx.shape_inference.InferenceError, ValueError):
        return {}
    return {value.name: _name(value.type.tensor_type.elem_type) for value in (*graph.value_info, *graph.output)}


def widen(model: Any, types: Mapping[str, str] | None = None) -> None:
    """Make an `onnx.ModelProto` a float32 model of the same numbers, in place.

    With `types`, what `types_of` gave, tensors of other types that are cast to half precision are rounded there.
    """
    halves, wide = _halves(), onnx.TensorProto.FLOAT
    for _, tensor in _tensors(model):
        if tensor.data_type in halves:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array_of(tensor).astype(np.float32), tensor.name))
    for graph in every_graph(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in halves:
                value.type.tensor_type.elem_type = wide
        if types is not None:
            set_nodes(graph, [each for node in graph.node for each in _rounding(node, types)])
    for node, attribute in _type_attributes(model):
        if attribute.i in halves and not (node.op_type == "Cast" and node.output[0].endswith(_ROUNDED)):
            attribute.i = wide


def _rounding(node: Any, types: Mapping[str, str]) -> list[Any]:
    """The node; a Cast from another type to half precision, and one back behind it."""
    to = [each.i for each in node.attribute if each.name == "to" and node.op_type == "Cast"]
    if not to or to[0] not in _halves() or types.get(node.input[0]) in (*HALVES, "bool"):
        return [node]
    back = onnx.helper.make_node("Cast", [node.output[0] + _ROUNDED], [node.output[0]], to=onnx.TensorProto.FLOAT)
    node.output[0] += _ROUNDED
    return [node, back]


def _halves() -> tuple[int, int]:
    return onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16


def _type_attributes(model: Any) -> Iterator[tuple[Any, Any]]:
    """Attributes that hold element types, with their nodes."""
    nodes = (node for graph in every_graph(model.graph) for node in graph.node)
    return ((node, each) for node in nodes for each in node.attribute if each.name in _TYPES)


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
