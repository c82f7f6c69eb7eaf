"""Constants of an ONNX graph as dense tensors and arrays, and nodes computed by ONNX's own reference implementation."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvm_sparse.conv.spec import MAX_ELEMENTS
from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.onnx.graph.nodes import every_graph
from tvm_sparse.frontend.optional_imports import onnx

# Domains of the standard operators.
ONNX_DOMAINS = ("", "ai.onnx")
# Attributes of Constant other than a tensor -> the NumPy type that ONNX gives its values.
_VALUES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
# Operators of which the reference has no older version, though they mean the same.
_FIRST_OPSETS = {"DequantizeLinear": 19, "QuantizeLinear": 19}


def constants_as_tensors(where: str, model: Any) -> None:
    """Rewrite the constants of an `onnx.ModelProto`, in place, as dense tensors, which is all that TVM reads.

    ModelError where a sparse tensor is too large or damaged.
    """
    for graph in every_graph(model.graph):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(where, sparse))
        del graph.sparse_initializer[:]
        for node in graph.node:
            _constant_as_tensor(where, node)


def _constant_as_tensor(where: str, node: Any) -> None:
    """Write the value of a Constant, of whatever attribute, as a dense tensor; other nodes stay."""
    if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS or len(node.attribute) != 1:
        return
    (attribute,) = node.attribute
    if attribute.name == "sparse_value":
        tensor = _dense(where, attribute.sparse_tensor)
    elif attribute.name in _VALUES:
        values = np.asarray(onnx.helper.get_attribute_value(attribute), _VALUES[attribute.name])
        tensor = onnx.numpy_helper.from_array(values)
    else:
        return
    attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


def _dense(where: str, sparse: Any) -> Any:
    """An `onnx.SparseTensorProto` as a dense `onnx.TensorProto` of the same name."""
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
    return onnx.numpy_helper.from_array(dense, name)


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
    """The constants of an `onnx.ModelProto`: `tensors`, as `onnx.TensorProto`, by name."""

    def __init__(self, model: Any):
        self.tensors = onnx_tensors(model)

    def array(self, name: str) -> np.ndarray:
        """The value of the tensor `name`, which is in `tensors`; ModelError where it is damaged."""
        return array_of(self.tensors[name])


def array_of(tensor: Any) -> np.ndarray:
    """The value of an `onnx.TensorProto`; ModelError where it is damaged, or of an unknown type."""
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (KeyError, ValueError, TypeError) as error:
        problem = f"it cannot be read ({first_line(error)})"
        raise ModelError(f"tensor {tensor.name}", problem, hint="export the model again") from None


def evaluate(node: Any, opset: int, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """The outputs of a node of standard operators, of version `opset`; None where ONNX has no reference of them.

    ModelError where they cannot be computed of such inputs.
    """
    names = dict.fromkeys(name for name in node.input if name)
    values = [[onnx.ValueInfoProto(name=name) for name in each] for each in (names, filter(None, node.output))]
    try:
        graph = onnx.helper.make_graph([node], "node", *values)
        opset = max(opset, _FIRST_OPSETS.get(node.op_type, opset))
        evaluator = onnx.reference.ReferenceEvaluator(graph, {"": opset})
        # What divides by zero here does so at run time anyway.
        with np.errstate(all="ignore"):
            outputs = evaluator.run(None, {name: inputs[name] for name in names})
        return [np.asarray(output) for output in outputs]
    except NotImplementedError:
        return None
    # The reference implementation trusts its input, and fails in any way.
    except Exception as error:
        problem = f"{node.op_type} of constants cannot be computed ({first_line(error)})"
        raise ModelError(f"node {node.name or node.output[0]}", problem, hint="export the model again") from error
