"""Constants of an ONNX graph, and what nodes compute of them: reshaped, cast and masked weights.

ONNX's own reference implementation computes it, node by node.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_sparse.conv.spec import MAX_ELEMENTS
from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.optional_imports import require

# Domains of the standard operators.
ONNX_DOMAINS = ("", "ai.onnx")
QUANTISING = ("QuantizeLinear", "DequantizeLinear")
# Operators that give a weight another form; Mul applies a mask that pruning left.
_FORMS = {"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Mul", *QUANTISING}
# Attributes of Constant other than a tensor -> the NumPy type that ONNX gives its values.
_VALUES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def constants_as_tensors(where: str, model: Any) -> None:
    """Rewrite the constants of an `onnx.ModelProto`, in place, as dense tensors, which is all that TVM reads.

    Raises
    ------
    ModelError
        A sparse tensor is too large or damaged.
    """
    helper, numpy_helper = require("onnx.helper", "onnx"), require("onnx.numpy_helper", "onnx")
    for sparse in model.graph.sparse_initializer:
        model.graph.initializer.append(_dense(where, sparse))
    del model.graph.sparse_initializer[:]
    for node in model.graph.node:
        if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS or len(node.attribute) != 1:
            continue
        (attribute,) = node.attribute
        if attribute.name == "sparse_value":
            tensor = _dense(where, attribute.sparse_tensor)
        elif attribute.name in _VALUES:
            values = np.asarray(helper.get_attribute_value(attribute), _VALUES[attribute.name])
            tensor = numpy_helper.from_array(values)
        else:
            continue
        attribute.CopyFrom(helper.make_attribute("value", tensor))


def _dense(where: str, sparse: Any) -> Any:
    """An `onnx.SparseTensorProto` as a dense `onnx.TensorProto` of the same name."""
    numpy_helper = require("onnx.numpy_helper", "onnx")
    name, shape = sparse.values.name, list(sparse.dims)
    elements = math.prod(shape)
    if not 0 <= elements <= MAX_ELEMENTS:
        raise ModelError(where, f"tensor {name} is too large", f"{elements} elements", f"up to {MAX_ELEMENTS}")
    try:
        values, indices = array_of(sparse.values), array_of(sparse.indices)
        dense = np.zeros(shape, values.dtype)
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (ValueError, IndexError) as error:
        problem = f"sparse tensor {name} cannot be read ({first_line(error)})"
        raise ModelError(where, problem, hint="export it again") from None
    return numpy_helper.from_array(dense, name)


def onnx_tensors(model: Any) -> dict[str, Any]:
    """Constants of the graph, as `onnx.TensorProto`."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    return tensors


def opset_of(model: Any) -> int:
    """The version of the standard operators that an `onnx.ModelProto` uses."""
    return next((each.version for each in model.opset_import if each.domain in ONNX_DOMAINS), 1)


class Constants:
    """The constants of an `onnx.ModelProto`, and what it makes of them alone by `_FORMS`."""

    def __init__(self, model: Any):
        self.tensors = onnx_tensors(model)
        self._opset = opset_of(model)
        # Name of a tensor -> the constant that it is another form of.
        self.parameters = {name: name for name in self.tensors}
        self._nodes: list[Any] = []
        for node in model.graph.node:
            inputs = [name for name in node.input if name]
            is_form = node.op_type in _FORMS and node.domain in ONNX_DOMAINS
            if is_form and inputs and self.parameters.keys() >= set(inputs):
                names = [self.parameters[name] for name in inputs]
                self.parameters[node.output[0]] = next((each for each in names if each.endswith(".weight")), names[0])
                self._nodes.append(node)

    def steps(self, name: str) -> list[Any]:
        """The nodes that compute the tensor `name`, which is in `parameters`, in their order."""
        wanted, steps = {name}, []
        for node in reversed(self._nodes):
            if node.output[0] in wanted:
                wanted.update(node.input)
                steps.append(node)
        return steps[::-1]

    def array(self, name: str) -> np.ndarray:
        """The value of the tensor `name`, which is in `parameters`.

        Raises
        ------
        ModelError
            A constant is damaged, or cannot have the new form, or the result is too large.
        """
        values: dict[str, np.ndarray] = {}
        for node in self.steps(name):
            inputs = {
                each: values[each] if each in values else array_of(self.tensors[each]) for each in node.input if each
            }
            _check_size(node, [value.shape for value in inputs.values()])
            (values[node.output[0]],) = evaluate(node, self._opset, inputs)
        return values[name] if name in values else array_of(self.tensors[name])


def array_of(tensor: Any) -> np.ndarray:
    """The value of an `onnx.TensorProto`.

    Raises
    ------
    ModelError
        It is damaged, or of an unknown type.
    """
    try:
        return require("onnx.numpy_helper", "onnx").to_array(tensor)
    except (KeyError, ValueError, TypeError) as error:
        problem = f"it cannot be read ({first_line(error)})"
        raise ModelError(f"tensor {tensor.name}", problem, hint="export the model again") from None


def _check_size(node: Any, shapes: Sequence[Sequence[int]]) -> None:
    """Raise ModelError where a product takes more elements than compiled code can index."""
    axes = max(map(len, shapes))
    padded = [(1,) * (axes - len(shape)) + tuple(shape) for shape in shapes]
    elements = math.prod(map(max, zip(*padded, strict=True))) if node.op_type == "Mul" else 0
    if elements > MAX_ELEMENTS:
        found, allowed = f"{elements} elements", f"up to {MAX_ELEMENTS} elements"
        raise ModelError(f"node {node.name or node.output[0]}", "its output is too large", found, allowed)


def evaluate(node: Any, opset: int, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a node of standard operators, of version `opset`.

    Raises
    ------
    ModelError
        They cannot be computed of such inputs.
    """
    onnx, reference = require("onnx", "onnx"), require("onnx.reference", "onnx")
    names = dict.fromkeys(name for name in node.input if name)
    values = [[onnx.ValueInfoProto(name=name) for name in each] for each in (names, node.output)]
    try:
        graph = onnx.helper.make_graph([node], "node", *values)
        outputs = reference.ReferenceEvaluator(graph, {"": opset}).run(None, {name: inputs[name] for name in names})
        return [np.asarray(output) for output in outputs]
    # The reference implementation trusts its input, and fails in any way.
    except Exception as error:
        problem = f"{node.op_type} of constants cannot be computed ({first_line(error)})"
        raise ModelError(f"node {node.name or node.output[0]}", problem, hint="export the model again") from error
