"""Subgraphs of ONNX's control flow as plain nodes, where it is known which run, and how often.

``squeeze`` of an open axis is an If on a size, and a fixed input decides it; the bodies of some of ONNX's own functions
are a Loop or Scan over an axis.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, opset_of
from tvm_sparse.frontend.onnx.graph.nodes import constant_node, every_graph, subgraphs_of
from tvm_sparse.frontend.onnx.model import attributes_of
from tvm_sparse.frontend.optional_imports import onnx

# Nodes that loops of a model make in all.
MOST_NODES = 20_000
# The value of a tensor, and its shape, None where it is not known.
ValueOf = Callable[[str], np.ndarray | None]
ShapeOf = Callable[[str], tuple[int, ...] | None]


class Subgraphs:
    """Makes the nodes that those with subgraphs stand for, with names that the `onnx.ModelProto` has not."""

    def __init__(self, where: str, model: Any):
        self._where, self._opset = where, opset_of(model)
        self._taken = {name for graph in every_graph(model.graph) for name in _names(graph)}
        self._made = 0

    def inlined(self, node: Any, value: ValueOf, shape: ShapeOf) -> list[Any] | None:
        """The nodes that give the outputs of `node`; None where it has no subgraph, or what decides is not known.

        ModelError where they are too many.
        """
        expand = {"If": self._if, "Loop": self._loop, "Scan": self._scan}.get(node.op_type)
        if expand is None or node.domain not in ONNX_DOMAINS:
            return None
        return expand(node, attributes_of(node), value, shape)

    def _if(self, node: Any, attributes: Mapping[str, Any], value: ValueOf, _shape: ShapeOf) -> list[Any] | None:
        condition = value(node.input[0])
        if condition is None or condition.size != 1:
            return None
        branch = attributes["then_branch" if condition.item() else "else_branch"]
        return self._instance(node, branch, [], node.output)

    def _loop(self, node: Any, attributes: Mapping[str, Any], value: ValueOf, _shape: ShapeOf) -> list[Any] | None:
        count, condition = (value(name) if name else None for name in (*node.input, "", "")[:2])
        body = attributes["body"]
        if count is None or not _runs_on(body) or (node.input[1:2] != [""] and condition is None):
            return None
        steps = 0 if condition is not None and not condition.item() else int(count.item())
        carried = list(node.input[2:])
        scanned = [list[str]() for _ in node.output[len(carried) :]]
        if steps < 1 and scanned:
            return None
        self._require_few(node, steps, body)
        nodes = []
        for step in range(max(steps, 0)):
            at, is_on = self._name(f"{node.output[0]}.step"), self._name(f"{node.output[0]}.on")
            nodes += [constant_node(at, np.array(step, np.int64)), constant_node(is_on, np.array(True))]
            outputs = [self._name(value.name) for value in body.output]
            nodes += self._instance(node, body, [at, is_on, *carried], outputs)
            carried = outputs[1 : 1 + len(carried)]
            for found, name in zip(scanned, outputs[1 + len(carried) :], strict=True):
                found.append(name)
        nodes += [self._same(one, other) for one, other in zip(carried, node.output, strict=False) if other]
        for found, name in zip(scanned, node.output[len(carried) :], strict=True):
            nodes += self._stacked(found, name, 0)
        return nodes

    def _scan(self, node: Any, attributes: Mapping[str, Any], _value: ValueOf, shape: ShapeOf) -> list[Any] | None:
        body, count = attributes["body"], attributes["num_scan_inputs"]
        carried, inputs = list(node.input[: len(node.input) - count]), list(node.input[len(node.input) - count :])
        results = len(node.output) - len(carried)
        axes, backwards = (attributes.get(f"scan_input_{name}", [0] * count) for name in ("axes", "directions"))
        out_axes, out_backwards = (
            attributes.get(f"scan_output_{name}", [0] * results) for name in ("axes", "directions")
        )
        shapes = [shape(name) for name in inputs]
        # Before version 9 it counts batches too.
        if self._opset < 9 or not inputs or any(each is None for each in shapes):
            return None
        steps = (shapes[0] or ())[axes[0]]
        self._require_few(node, steps, body)
        nodes, scanned = [], [list[str]() for _ in range(results)]
        for step in range(steps):
            parts = []
            for name, axis, is_backward in zip(inputs, axes, backwards, strict=True):
                at, part = self._name(f"{name}.step"), self._name(f"{name}.part")
                nodes.append(constant_node(at, np.array(steps - 1 - step if is_backward else step, np.int64)))
                nodes.append(onnx.helper.make_node("Gather", [name, at], [part], axis=axis))
                parts.append(part)
            outputs = [self._name(value.name) for value in body.output]
            nodes += self._instance(node, body, [*carried, *parts], outputs)
            carried = outputs[: len(carried)]
            for found, name in zip(scanned, outputs[len(carried) :], strict=True):
                found.append(name)
        nodes += [self._same(one, other) for one, other in zip(carried, node.output, strict=False) if other]
        ends = zip(scanned, node.output[len(carried) :], out_axes, out_backwards, strict=True)
        for found, name, axis, is_backward in ends:
            nodes += self._stacked(found[::-1] if is_backward else found, name, axis)
        return nodes

    def _require_few(self, node: Any, steps: int, body: Any) -> None:
        self._made += max(steps, 0) * (len(body.node) + len(body.output) + 2)
        if self._made > MOST_NODES:
            problem = f"the {node.op_type} has too many steps"
            hint = "export the model so that it computes on whole tensors"
            name = f"{self._where}, node {node.name or node.output[0]}"
            raise ModelError(name, problem, f"{steps} steps", f"{MOST_NODES} nodes in all", hint)

    def _instance(self, node: Any, graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> list[Any]:
        """The nodes of a subgraph that reads tensors of the names `inputs` and gives those of `outputs`."""
        names = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
        inner = {name for each in graph.node for name in each.output if name}
        given: dict[str, str] = {}
        for value, name in zip(graph.output, outputs, strict=False):
            if name and value.name in inner:
                given.setdefault(value.name, name)
        names |= given
        for name in (*(each.name for each in graph.initializer), *inner):
            names.setdefault(name, self._name(f"{node.name or node.output[0]}.{name}"))
        nodes = [constant_node(names[each.name], each) for each in graph.initializer]
        for each in graph.node:
            copy = type(each)()
            copy.CopyFrom(each)
            _rename(copy, names)
            nodes.append(copy)
        for value, name in zip(graph.output, outputs, strict=False):
            if name and given.get(value.name) != name:
                nodes.append(self._same(names.get(value.name, value.name), name))
        return nodes

    def _stacked(self, names: Sequence[str], output: str, axis: int) -> list[Any]:
        """The tensors `names`, one for each step, as one with another axis."""
        nodes, parts = list[Any](), []
        at = self._name(f"{output}.axis")
        if self._opset >= 13:
            nodes.append(constant_node(at, np.array([axis], np.int64)))
        for name in names:
            parts.append(self._name(f"{name}.row"))
            inputs, attributes = ([name, at], {}) if self._opset >= 13 else ([name], {"axes": [axis]})
            nodes.append(onnx.helper.make_node("Unsqueeze", inputs, [parts[-1]], **attributes))
        return [*nodes, onnx.helper.make_node("Concat", parts, [output], axis=axis)] if output else []

    def _same(self, name: str, other: str) -> Any:
        return onnx.helper.make_node("Identity", [name], [other])

    def _name(self, wanted: str) -> str:
        """A name like `wanted` that no tensor has."""
        name, count = wanted, len(self._taken)
        while name in self._taken:
            name, count = f"{wanted}.{count}", count + 1
        self._taken.add(name)
        return name


def _names(graph: Any) -> list[str]:
    """The names of the tensors that a graph has, without those of its subgraphs."""
    values = (*graph.input, *graph.initializer)
    return [each.name for each in values] + [name for node in graph.node for name in node.output]


def _rename(node: Any, names: Mapping[str, str]) -> None:
    """Give the tensors of a node other names, in its subgraphs too, which may have tensors of their own of a name."""
    for field in (node.input, node.output):
        for index, name in enumerate(field):
            field[index] = names.get(name, name)
    for graph in subgraphs_of(node):
        own = set(_names(graph))
        outer = {name: other for name, other in names.items() if name not in own}
        for each in graph.node:
            _rename(each, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def _runs_on(body: Any) -> bool:
    """Whether the condition that the body of a Loop gives is true, or the one that it got."""
    name, made = body.output[0].name, {node.output[0]: node for node in body.node if node.output}
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    if name in made and made[name].op_type == "Constant":
        (attribute,) = made[name].attribute
        return attribute.name == "value" and bool(onnx.numpy_helper.to_array(attribute.t).all())
    return name == body.input[1].name
