"""Which tensors of an ONNX graph have values that are known before it runs, computed by ONNX's own reference.

How large a result is, and how much work, is known before it is computed.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, array_of, evaluate, onnx_tensors, opset_of
from tvm_sparse.frontend.optional_imports import onnx

# Elements of the largest tensor that any operator computes here: those of shapes and indices.
MOST_ELEMENTS = 4096
# Times that all constants may be computed anew: forms of weights are, one after the other.
MOST_FORMS = 16
# What larger tensors, which are weights, may go through: NumPy's own loops compute it.
# fmt: off
_FAST = {
    "Abs", "Add", "BatchNormalization", "Cast", "Clip", "Concat", "DequantizeLinear", "Div", "Exp", "Expand", "Flatten",
    "Gather", "Identity", "InstanceNormalization", "LayerNormalization", "LpNormalization", "Max", "Min", "Mul", "Neg",
    "Pow", "QuantizeLinear", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum",
    "ReduceSumSquare", "Reshape", "Sigmoid", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile",
    "Transpose", "Unsqueeze", "Where",
}
# fmt: on
# Operators whose work is not bounded by what they read and write, beside convolutions and poolings.
_SLOW = {"Col2Im", "DeformConv", "Einsum", "MaxUnpool", "NonMaxSuppression"}
# Those whose results are of unknown length, but no longer than their inputs.
_SHORTENING = {"Compress", "NonZero", "Unique"}
# Those that read shapes only.
_OF_SHAPES = ("Shape", "Size")


class KnownValues:
    """Types of the tensors of an `onnx.ModelProto`, and values, so far as nodes have been seen.

    `computed` are the values of nodes; `parameters` say which parameter ``<layer>.weight`` a constant is a form of.
    """

    def __init__(self, model: Any):
        self._opsets, self._ir_version = list(model.opset_import), model.ir_version
        self._opset = opset_of(model)
        self._tensors = onnx_tensors(model)
        self.computed: dict[str, np.ndarray] = {}
        self.parameters = {name: _parameter(name) for name in self._tensors}
        self._budget = MOST_FORMS * sum(math.prod(each.dims) for each in self._tensors.values())
        self._types = {value.name: value.type for value in model.graph.input}
        for tensor in model.graph.initializer:
            self._types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)

    def infer(self, node: Any) -> None:
        """Note the types of the outputs of `node` where its inputs' are known."""
        inputs = {name: self._types[name] for name in node.input if name in self._types}
        has_graph = any(each.HasField("g") for each in node.attribute)
        if has_graph or node.domain not in ONNX_DOMAINS or set(inputs) != {name for name in node.input if name}:
            return
        data = {name: self._tensor(name) for name in inputs if self._is_small(name)}
        try:
            found = onnx.shape_inference.infer_node_outputs(
                self._schema(node), node, inputs, data, opset_imports=self._opsets, ir_version=self._ir_version
            )
        # Where the model is wrong, `check_shapes` says so; the shape is unknown here.
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError):
            return
        except (ValueError, RuntimeError, IndexError):
            return
        self._types |= found
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            name = node.output[0]
            self._tensors[name], self.parameters[name] = node.attribute[0].t, _parameter(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor, None where it is not known."""
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        is_known = all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims)
        return tuple(dim.dim_value for dim in dims) if is_known else None

    def value(self, name: str) -> np.ndarray | None:
        """The value of a constant, None for what is none."""
        if name in self.computed:
            return self.computed[name]
        return array_of(self._tensors[name]) if name in self._tensors else None

    def compute(self, node: Any) -> bool:
        """Whether the outputs of `node` are known and small; they are noted then."""
        if node.domain not in ONNX_DOMAINS or not self._are_inputs_known(node) or not self._is_computable(node):
            return False
        values = evaluate(node, self._opset, self._inputs(node))
        names = [name for name in node.output if name]
        if values is None or not self._are_as_inferred(node, names, values):
            return False
        parameter = next((self.parameters[name] for name in node.input if self.parameters.get(name)), "")
        for name, value in zip(names, values, strict=True):
            self.computed[name], self.parameters[name] = value, parameter
        return True

    def _are_inputs_known(self, node: Any) -> bool:
        if node.op_type in _OF_SHAPES:
            return self.shape(node.input[0]) is not None
        return bool(node.input) and all(
            not name or name in self.computed or name in self._tensors for name in node.input
        )

    def _inputs(self, node: Any) -> dict[str, np.ndarray]:
        if node.op_type in _OF_SHAPES:
            # This takes no memory.
            return {node.input[0]: np.broadcast_to(np.float32(0), self.shape(node.input[0]) or ())}
        values = ((name, self.value(name)) for name in node.input if name)
        return {name: value for name, value in values if value is not None}

    def _is_computable(self, node: Any) -> bool:
        """Whether the outputs of `node`, whose inputs are known, will be small, and soon computed."""
        reads_windows = node.op_type.endswith(("Conv", "Pool")) or any(a.name == "kernel_shape" for a in node.attribute)
        if node.op_type in _SLOW or reads_windows:
            return False
        inputs, outputs = ([name for name in each if name] for each in (node.input, node.output))
        if not all(self._is_number(name) for name in (*inputs, *outputs)):
            return False
        deterministic = onnx.defs.OpSchema.NodeDeterminism.Deterministic
        if self._schema(node).node_determinism != deterministic:
            return False
        read = 0 if node.op_type in _OF_SHAPES else sum(math.prod(self.shape(name) or ()) for name in inputs)
        if node.op_type in _SHORTENING:
            return read <= MOST_ELEMENTS
        shapes = [self.shape(name) for name in outputs]
        written = sum(math.prod(shape) for shape in shapes if shape is not None)
        if None in shapes or max(written, read) <= MOST_ELEMENTS:
            return None not in shapes
        self._budget -= written
        return node.op_type in _FAST and written <= max(read, MOST_ELEMENTS) and self._budget >= 0

    def _is_number(self, name: str) -> bool:
        kinds, kind = onnx.TensorProto, self._types.get(name)
        others = (kinds.UNDEFINED, kinds.STRING)
        return kind is not None and kind.HasField("tensor_type") and kind.tensor_type.elem_type not in others

    def _are_as_inferred(self, node: Any, names: Sequence[str], values: Sequence[np.ndarray]) -> bool:
        """Whether the reference implementation and the inference agree about the types of the outputs."""
        for name, value in zip(names, values, strict=True):
            dtype = onnx.helper.tensor_dtype_to_np_dtype(self._types[name].tensor_type.elem_type)
            if dtype != value.dtype or (node.op_type not in _SHORTENING and self.shape(name) != value.shape):
                return False
        return True

    def _schema(self, node: Any) -> Any:
        return onnx.defs.get_schema(node.op_type, self._opset, "")

    def _is_small(self, name: str) -> bool:
        shape = self.shape(name)
        return (
            (name in self.computed or name in self._tensors) and shape is not None and math.prod(shape) <= MOST_ELEMENTS
        )

    def _tensor(self, name: str) -> Any:
        """A constant as `onnx.TensorProto`."""
        if name in self._tensors:
            return self._tensors[name]
        return onnx.numpy_helper.from_array(self.computed[name], name)


def _parameter(name: str) -> str:
    """`name` where it is that of a parameter ``<layer>.weight``, else nothing."""
    return name if name.endswith(".weight") else ""
