"""Computes what an ONNX model computes of its tensors' shapes, which are known once its inputs' are.

Exporters write ``x.view(x.size(0), -1)`` as Shape, Gather, Concat and Reshape, and channel shuffles and interpolations
likewise. TVM would import such a Reshape as one to an unknown shape, and nothing behind it could be compiled.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_sparse.frontend.onnx.constants import ONNX_DOMAINS, array_of, evaluate, onnx_tensors, opset_of
from tvm_sparse.frontend.optional_imports import require

# Operators that compute with shapes and give the same for the same inputs.
# fmt: off
_FOLDED = {
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Flatten",
    "Floor", "Gather", "GatherElements", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max",
    "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Range", "ReduceMax", "ReduceMin", "ReduceProd",
    "ReduceSum", "Reshape", "ScatterND", "Shape", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile",
    "Transpose", "Unsqueeze", "Where",
}
# fmt: on
# Elements of the largest tensor that is computed here: those that are no weights.
_MAX_ELEMENTS = 4096


def fold_shapes(model: Any) -> bool:
    """Replace nodes of an `onnx.ModelProto` that compute of shapes and small constants only, in place, by results.

    Shapes of all inputs are known; see `fix_shapes`. Returns whether anything was replaced.

    Raises
    ------
    ModelError
        A node cannot be computed.
    """
    numpy_helper = require("onnx.numpy_helper", "onnx")
    graph = _Graph(model)
    kept, returned = [], {value.name for value in model.graph.output}
    for node in model.graph.node:
        graph.infer(node)
        values = graph.values(node) if returned.isdisjoint(node.output) else None
        if values is None:
            kept.append(node)
            continue
        for name, value in zip(node.output, values, strict=True):
            tensor = numpy_helper.from_array(value, name)
            graph.tensors[name] = tensor
            model.graph.initializer.append(tensor)
    is_changed = len(kept) < len(model.graph.node)
    if is_changed:
        del model.graph.node[:]
        model.graph.node.extend(kept)
    return is_changed


class _Graph:
    """Types of the tensors of a graph, and the values of small constants, so far as nodes have been seen."""

    def __init__(self, model: Any):
        self.onnx = require("onnx", "onnx")
        self.inference = require("onnx.shape_inference", "onnx")
        self.opsets, self.ir_version = list(model.opset_import), model.ir_version
        self.opset = opset_of(model)
        self.tensors = {
            name: each for name, each in onnx_tensors(model).items() if math.prod(each.dims) <= _MAX_ELEMENTS
        }
        self.types = {value.name: value.type for value in model.graph.input}
        for tensor in model.graph.initializer:
            self.types[tensor.name] = self.onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)

    def infer(self, node: Any) -> None:
        """Note the types of the outputs of `node` where its inputs' are known."""
        inputs = {name: self.types[name] for name in node.input if name in self.types}
        has_graph = any(each.HasField("g") for each in node.attribute)
        if has_graph or node.domain not in ONNX_DOMAINS or set(inputs) != {name for name in node.input if name}:
            return
        schema = self.onnx.defs.get_schema(node.op_type, self.opset, "")
        data = {name: self.tensors[name] for name in inputs if name in self.tensors}
        try:
            found = self.inference.infer_node_outputs(
                schema, node, inputs, data, opset_imports=self.opsets, ir_version=self.ir_version
            )
        except self.inference.InferenceError:
            # `check_shapes` says so where the model is wrong; the shape is unknown here.
            return
        self.types |= found

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor, None where it is not known."""
        kind = self.types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None

    def _is_float(self, name: str) -> bool:
        kinds = self.onnx.TensorProto
        return self.types[name].tensor_type.elem_type in (kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE)

    def values(self, node: Any) -> Sequence[np.ndarray] | None:
        """What `node` computes where that is known and small, else None."""
        shapes = [self.shape(name) for name in node.output]
        if node.op_type not in _FOLDED or node.domain not in ONNX_DOMAINS:
            return None
        if any(shape is None or math.prod(shape) > _MAX_ELEMENTS for shape in shapes):
            return None
        # Matrices of numbers are weights, whose names would be lost.
        if any(len(shape or ()) > 1 and self._is_float(name) for name, shape in zip(node.output, shapes, strict=True)):
            return None
        inputs: Mapping[str, np.ndarray]
        if node.op_type in ("Shape", "Size"):
            shape = self.shape(node.input[0])
            # Only its shape is read, and this takes no memory.
            inputs = {node.input[0]: np.broadcast_to(np.float32(0), shape)} if shape is not None else {}
        else:
            inputs = {name: array_of(self.tensors[name]) for name in node.input if name in self.tensors}
        if set(inputs) != {name for name in node.input if name}:
            return None
        return evaluate(node, self.opset, inputs)
