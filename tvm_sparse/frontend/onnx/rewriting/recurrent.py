"""Writes the layers RNN, GRU and LSTM of an ONNX graph out as plain nodes, step by step over a fixed sequence.

What a layer computes of all steps' inputs at once is one product of matrices. Names are those of the standard: inputs
X, W, R, B, P; gates z, r, h of a GRU and i, o, f, c of an LSTM.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, Constants, opset_of
from tvm_sparse.frontend.onnx.graph.nodes import constant_node, set_nodes
from tvm_sparse.frontend.onnx.model import attributes_of
from tvm_sparse.frontend.onnx.rewriting.recurrent_activations import activations_of
from tvm_sparse.frontend.onnx.rewriting.recurrent_steps import STEPS, Direction
from tvm_sparse.frontend.optional_imports import onnx

# Operator -> gates of its weights, in units of the hidden size.
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Steps of all directions of a layer: each is a dozen nodes, and compiled apart.
MOST_STEPS = 2048
_HINT = "use a shorter sequence"


def write_out_recurrent(where: str, model: Any, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Replace each RNN, GRU and LSTM of an `onnx.ModelProto`, in place; whether there was one.

    ModelError where the sequence is too long or its shape unknown, sequences end early, or an activation is unknown.
    """
    constants, opset, nodes = Constants(model), opset_of(model), list[Any]()
    for node in model.graph.node:
        if node.op_type in GATES and node.domain in ONNX_DOMAINS:
            nodes += _Layer(where, node, opset, shapes, constants).nodes
        else:
            nodes.append(node)
    is_changed = len(nodes) > len(model.graph.node)
    set_nodes(model.graph, nodes)
    return is_changed


class _Layer:
    """The nodes of one layer."""

    def __init__(self, where: str, node: Any, opset: int, shapes: Mapping[str, Sequence[int]], constants: Constants):
        self.where = f"{where}, node {node.name or node.output[0]}"
        self.node, self.opset, self.nodes = node, opset, list[Any]()
        self.attributes = attributes_of(node)
        self.kind, self.is_batch_first = node.op_type, bool(self.attributes.get("layout", 0))
        self.hidden = self._size(shapes, 2)[2]
        x_shape, rows = self._size(shapes, 0), GATES[self.kind] * self.hidden
        self.batch, self.length = x_shape[:2] if self.is_batch_first else x_shape[1::-1]
        names = {b"forward": [False], b"reverse": [True], b"bidirectional": [False, True]}
        backwards = names.get(self.attributes.get("direction", b"forward"))
        if backwards is None:
            problem, found = "its direction is unknown", self.attributes["direction"].decode(errors="replace")
            raise ModelError(self.where, problem, found, "forward, reverse, bidirectional")
        count, inputs = len(backwards), x_shape[2]
        for index, wanted in ((1, [count, rows, inputs]), (2, [count, rows, self.hidden])):
            if self._size(shapes, index) != wanted:
                problem = f"its weight {self._input(index)} does not fit its input"
                raise ModelError(self.where, problem, tuple(self._size(shapes, index)), str(tuple(wanted)))
        self._require_whole_sequences(constants)
        steps = self.length * count
        if steps > MOST_STEPS:
            raise ModelError(self.where, "its sequence is too long", f"{steps} steps", f"up to {MOST_STEPS}", _HINT)
        self.activations = activations_of(self.where, self.kind, count, self.attributes)
        self._write([self._direction(index, is_backward) for index, is_backward in enumerate(backwards)])

    def _size(self, shapes: Mapping[str, Sequence[int]], index: int) -> list[int]:
        """The shape of one of the first three inputs."""
        shape = list(shapes.get(self._input(index), []))
        if len(shape) != 3 or min(shape) < 1:
            problem = f"the shape of its input {self._input(index)} is not known"
            raise ModelError(self.where, problem, tuple(shape), "3 positive numbers", "give the model's shapes")
        return shape

    def _input(self, index: int) -> str:
        return self.node.input[index] if index < len(self.node.input) else ""

    def _require_whole_sequences(self, constants: Constants) -> None:
        name = self._input(4)
        lengths = constants.array(name) if name in constants.tensors else None
        if name and (lengths is None or (lengths != self.length).any()):
            found = "one of run time" if lengths is None else lengths.tolist()
            problem, allowed = "its sequences may end early", f"sequence_lens of {self.length}, or none"
            raise ModelError(self.where, problem, found, allowed, "export it without lengths")

    def _add(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        """Add a node and return the name of its output; numbers are constants of the type of the others."""
        names = [each if isinstance(each, str) else self._constant(np.float32(each)) for each in inputs]
        output = f"{self.node.name or self.node.output[0]}.{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, names, [output], name=output, **attributes))
        return output

    def _constant(self, value: Any) -> str:
        name = f"{self.node.name or self.node.output[0]}.constant{len(self.nodes)}"
        self.nodes.append(constant_node(name, np.asarray(value)))
        return name

    def _reshape(self, x: str, *shape: int) -> str:
        return self._add("Reshape", x, self._constant(np.array(shape, np.int64)))

    def _split(self, x: str, parts: int, axis: int, size: int = 0) -> list[str]:
        sizes = [size or self.hidden] * parts
        inputs, attributes = ([x, self._constant(np.array(sizes))], {}) if self.opset >= 13 else ([x], {"split": sizes})
        names = [f"{self.node.name or self.node.output[0]}.{len(self.nodes)}.{index}" for index in range(parts)]
        self.nodes.append(onnx.helper.make_node("Split", inputs, names, axis=axis, **attributes))
        return names

    def _of_direction(self, name: str, index: int) -> str:
        """A tensor of the layer without the axis of directions, which is its first."""
        return self._add("Gather", name, self._constant(np.array(index)), axis=0)

    def _initial(self, name: str, index: int) -> str:
        if not name:
            return self._constant(np.zeros((self.batch, self.hidden), np.float32))
        if self.is_batch_first:
            name = self._add("Transpose", name, perm=[1, 0, 2])
        return self._of_direction(name, index)

    def _direction(self, index: int, is_backward: bool) -> tuple[list[str], Direction]:
        """The states after each step, in the order of the sequence, and the direction at its end."""
        recurrent = self._add("Transpose", self._of_direction(self._input(2), index), perm=[1, 0])
        products, late_bias = self._products(index)
        is_lstm = self.kind == "LSTM"
        direction = Direction(
            self._add,
            self._split,
            self.activations[index],
            self._split(products, self.length, 0, self.batch),
            recurrent,
            self._initial(self._input(5), index),
            self._initial(self._input(6), index) if is_lstm else "",
            late_bias,
            self._split(self._of_direction(self._input(7), index), 3, 0) if is_lstm and self._input(7) else [],
            float(self.attributes.get("clip", 0.0)),
            bool(late_bias),
            bool(self.attributes.get("input_forget", 0)),
            self._parts(recurrent) if self.kind == "GRU" else [],
        )
        states = []
        for product in reversed(direction.products) if is_backward else direction.products:
            STEPS[self.kind](direction, product)
            states.append(direction.state)
        return states[::-1] if is_backward else states, direction

    def _products(self, index: int) -> tuple[str, str]:
        """The products of all steps' inputs with W, with their bias; and the bias of a GRU that is added later."""
        x = self._add("Transpose", self._input(0), perm=[1, 0, 2]) if self.is_batch_first else self._input(0)
        weight = self._add("Transpose", self._of_direction(self._input(1), index), perm=[1, 0])
        flat = self._add("Reshape", x, self._constant(np.array([self.length * self.batch, -1])))
        products, zeros = self._add("MatMul", flat, weight), np.zeros(self.hidden, np.float32)
        is_reset_late = self.kind == "GRU" and bool(self.attributes.get("linear_before_reset", 0))
        if not self._input(3):
            return products, self._constant(zeros) if is_reset_late else ""
        biases, late_bias = self._of_direction(self._input(3), index), ""
        bias, recurrent_bias = self._split(biases, 2, 0, GATES[self.kind] * self.hidden)
        if is_reset_late:
            *others, late_bias = self._split(recurrent_bias, 3, 0)
            recurrent_bias = self._add("Concat", *others, self._constant(zeros), axis=0)
        return self._add("Add", products, self._add("Add", bias, recurrent_bias)), late_bias

    def _parts(self, recurrent: str) -> list[str]:
        """The recurrent weight of a GRU's update and reset, and that of its hidden gate."""
        z, r, h = self._split(recurrent, 3, 1)
        return [self._add("Concat", z, r, axis=1), h]

    def _write(self, directions: Sequence[tuple[list[str], Direction]]) -> None:
        """The outputs of the layer, those that are asked for."""
        outputs = [*self.node.output, "", ""][:3]
        if outputs[0]:
            sizes = (self.length, 1, self.batch, self.hidden)
            whole = [self._reshape(self._add("Concat", *states, axis=0), *sizes) for states, _ in directions]
            self._end(outputs[0], self._add("Concat", *whole, axis=1), [2, 0, 1, 3])
        for output, lasts in (
            (outputs[1], [each.state for _, each in directions]),
            (outputs[2], [each.cell for _, each in directions]),
        ):
            if output:
                rows = [self._reshape(last, 1, self.batch, self.hidden) for last in lasts]
                self._end(output, self._add("Concat", *rows, axis=0), [1, 0, 2])

    def _end(self, output: str, name: str, batch_first: list[int]) -> None:
        if self.is_batch_first:
            name = self._add("Transpose", name, perm=batch_first)
        self.nodes.append(onnx.helper.make_node("Identity", [name], [output]))
