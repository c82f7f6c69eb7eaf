"""Constants of an ONNX graph, and what nodes compute of them: reshaped and cast weights, shapes of tensors.

ONNX's own reference implementation computes it, node by node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_sparse.conv.spec import MAX_ELEMENTS
from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.optional_imports import require

# Domains of the standard operators.
ONNX_DOMAINS = ("", "ai.onnx")
# Operators that give a weight another form.
_RESHAPING = ("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
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
    # Python's integers do not overflow.
    elements = 1
    for size in shape:
        elements *= size
    if not 0 <= elements <= MAX_ELEMENTS:
        raise ModelError(where, f"tensor {name} is too large", f"{elements} elements", f"up to {MAX_ELEMENTS}")
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        dense = np.zeros(shape, values.dtype)
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (ValueError, TypeError, KeyError, IndexError) as error:
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


@dataclass(frozen=True)
class Origin:
    """The constant that a tensor is another form of, and the nodes between them, the constant's first."""

    parameter: str
    nodes: tuple[Any, ...]

    @property
    def quantising(self) -> Any:
        """The first node that quantises, or undoes it; None where there is none."""
        return next((node for node in self.nodes if node.op_type in _QUANTISING), None)


def opset_of(model: Any) -> int:
    """The version of the standard operators that an `onnx.ModelProto` uses."""
    return next((each.version for each in model.opset_import if each.domain in ONNX_DOMAINS), 1)


class Constants:
    """The constants of an `onnx.ModelProto`, and those that it reshapes, transposes, casts or quantises."""

    def __init__(self, model: Any):
        self.tensors = onnx_tensors(model)
        self._opset = opset_of(model)
        self._makers = {
            node.output[0]: node
            for node in model.graph.node
            if node.op_type in (*_RESHAPING, *_QUANTISING) and node.domain in ONNX_DOMAINS and node.input
        }

    def origin(self, name: str) -> Origin | None:
        """Where the tensor `name` comes from; None where that is no constant."""
        nodes: list[Any] = []
        # The checker has found the graph to be sorted, so this ends.
        while name not in self.tensors and name in self._makers:
            nodes.insert(0, self._makers[name])
            name = nodes[0].input[0]
        others = {other for node in nodes for other in node.input[1:] if other}
        return Origin(name, tuple(nodes)) if name in self.tensors and others <= set(self.tensors) else None

    def array(self, origin: Origin) -> np.ndarray:
        """The value of the tensor that `origin` leads to.

        Raises
        ------
        ModelError
            The constant is damaged, or does not have the new form.
        """
        value = self._array(origin.parameter)
        for node in origin.nodes:
            others = {name: self._array(name) for name in node.input[1:] if name}
            (value,) = evaluate(node, self._opset, {**others, node.input[0]: value})
        return value

    def _array(self, name: str) -> np.ndarray:
        try:
            return require("onnx.numpy_helper", "onnx").to_array(self.tensors[name])
        except (KeyError, ValueError, TypeError) as error:
            raise ModelError(
                f"tensor {name}", f"it cannot be read ({first_line(error)})", hint="export the model again"
            ) from None


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
