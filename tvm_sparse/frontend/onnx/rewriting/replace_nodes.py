"""Replaces nodes of an ONNX graph by others that compute the same."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, Constants, opset_of
from tvm_sparse.frontend.onnx.graph.nodes import set_nodes
from tvm_sparse.frontend.onnx.model import attributes_of
from tvm_sparse.frontend.optional_imports import onnx

# A constant of them takes 128 MB.
_MAX_INDICES = 2**24


class Replacement:
    """A node to be replaced, what is known of its inputs, and the nodes that come in its place.

    Attributes
    ----------
    node : onnx.NodeProto
    where : str
        The model's place and the node's name, for errors.
    attributes : dict
        Of the node by name; strings are str.
    opset : int
        The version of the standard operators.
    """

    def __init__(self, node: Any, graph: "_Graph"):
        self.node, self.opset = node, graph.opset
        self.where = f"{graph.where}, node {node.name or node.output[0]}"
        self.attributes: dict[str, Any] = {
            name: value.decode(errors="replace") if isinstance(value, bytes) else value
            for name, value in attributes_of(node).items()
        }
        self._graph = graph
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def input(self, index: int) -> str:
        """The name of an input; empty where it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def shape(self, name: str) -> list[int]:
        """The shape of a tensor of the model; ModelError where it is not known."""
        shape = self._graph.shape(name)
        if shape is None:
            raise ModelError(self.where, f"the shape of {name} is not known", hint="give the model fixed shapes")
        return shape

    def dtype(self, name: str) -> np.dtype:
        """The element type of a tensor of the model."""
        return self._graph.dtype(name)

    def array(self, name: str) -> np.ndarray | None:
        """The value of a tensor of the model, None where it is no constant."""
        constants = self._graph.constants
        return constants.array(name) if name in constants.tensors else None

    def array_of_input(self, index: int, what: str) -> np.ndarray:
        """The value of an input that has to be a constant, and is called `what`; ModelError where it is none."""
        value = self.array(self.input(index))
        if value is None:
            raise ModelError(
                self.where,
                f"its input {what} is no constant",
                self.input(index),
                "a constant",
                f"export it with constant {what}",
            )
        return value

    def require_few(self, elements: int) -> None:
        """Raise ModelError where so many elements of a tensor would each need a constant that says where it is."""
        if elements > _MAX_INDICES:
            hint = "make it smaller"
            raise ModelError(self.where, "its output is too large", f"{elements} elements", f"{_MAX_INDICES}", hint)

    def constant(self, value: Any) -> str:
        """The name of a new constant."""
        name = self._graph.free(f"{self.node.output[0]}.constant")
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node in its place, and return the name of its output."""
        output = self._graph.free(f"{self.node.output[0]}.part")
        self.nodes.append(onnx.helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def reshape(self, data: str, shape: Sequence[int]) -> str:
        """Add a Reshape."""
        return self.add("Reshape", data, self.constant(np.array(shape, np.int64)))

    def ended(self, result: str) -> list[Any]:
        """The nodes, of which the one that computes `result` has the node's name and output."""
        if not self.nodes or self.nodes[-1].output[0] != result:
            self.add("Identity", result)
        self.nodes[-1].name, self.nodes[-1].output[0] = self.node.name, self.node.output[0]
        return self.nodes


# Adds nodes to a replacement and returns the name of the result, or None where the node stays as it is.
Rewrite = Callable[[Replacement], str | None]


def replace_nodes(where: str, model: Any, rewrites: Mapping[str, Rewrite]) -> None:
    """Replace nodes of an `onnx.ModelProto`, whose shapes are fixed, by what `rewrites` makes of their operators.

    ModelError where a rewrite refuses a node.
    """
    if not any(operator_of(node) in rewrites for node in model.graph.node):
        return
    graph, nodes = _Graph(where, model), []
    for node in model.graph.node:
        replacement = Replacement(node, graph) if operator_of(node) in rewrites else None
        result = _result(rewrites[operator_of(node)], replacement) if replacement else None
        if replacement is None or result is None:
            nodes.append(node)
            continue
        nodes += replacement.ended(result)
        model.graph.initializer.extend(replacement.constants)
    set_nodes(model.graph, nodes)


def _result(rewrite: Rewrite, to: Replacement) -> str | None:
    try:
        return rewrite(to)
    # Lists of another length than the data's rank, sizes of zero and the like, which ONNX's inference lets pass.
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        problem = f"its attributes and inputs do not fit ({first_line(error)})"
        raise ModelError(to.where, problem, to.node.op_type, hint="export it again") from error


def operator_of(node: Any) -> str:
    """The operator of a node, behind its domain if that is not ONNX's."""
    return str(node.op_type if node.domain in ONNX_DOMAINS else f"{node.domain}.{node.op_type}")


class _Graph:
    """What is known of the tensors of a model."""

    def __init__(self, where: str, model: Any):
        self.where, self.opset, self.constants = where, opset_of(model), Constants(model)
        self._model = model
        self._taken = {*self.constants.tensors, *(each.name for each in model.graph.input)}
        self._taken.update(*(node.output for node in model.graph.node))

    def free(self, stem: str) -> str:
        """A name for a new tensor, which is `stem` and a number."""
        name = next(name for name in map(f"{stem}{{}}".format, itertools.count()) if name not in self._taken)
        self._taken.add(name)
        return name

    @cached_property
    def _types(self) -> dict[str, Any]:
        graph = onnx.shape_inference.infer_shapes(self._model, data_prop=True).graph
        return {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info, *graph.output)}

    def shape(self, name: str) -> list[int] | None:
        if name in self.constants.tensors:
            return list(self.constants.tensors[name].dims)
        kind = self._types.get(name)
        if kind is None or not kind.HasField("shape"):
            return None
        return [dim.dim_value for dim in kind.shape.dim] if all(map(_is_fixed, kind.shape.dim)) else None

    def dtype(self, name: str) -> np.dtype:
        tensor = self.constants.tensors.get(name)
        kind = tensor.data_type if tensor is not None else self._types[name].elem_type
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))


def _is_fixed(dim: Any) -> bool:
    return dim.HasField("dim_value") and dim.dim_value >= 0
