"""Nodes of ONNX graphs: what they hold, and new ones."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tvm_sparse.frontend.optional_imports import onnx


def subgraphs_of(node: Any) -> list[Any]:
    """The graphs that an `onnx.NodeProto` holds."""
    return [graph for each in node.attribute for graph in ([each.g] if each.HasField("g") else each.graphs)]


def every_graph(graph: Any) -> Iterator[Any]:
    """An `onnx.GraphProto` and those within its nodes, at any depth."""
    yield graph
    for node in graph.node:
        for each in subgraphs_of(node):
            yield from every_graph(each)


def set_nodes(graph: Any, nodes: Sequence[Any]) -> None:
    """Make `nodes`, some of which may be its own, the nodes of an `onnx.GraphProto`."""
    copied = type(graph)(node=nodes)
    del graph.node[:]
    graph.node.extend(copied.node)


def drop_unread(graph: Any) -> None:
    """Take nodes and constants out of an `onnx.GraphProto` that nothing reads."""
    read, nodes = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if read.intersection(node.output):
            nodes.append(node)
            read.update(node.input)
            for each in (each for within in subgraphs_of(node) for each in every_graph(within)):
                read.update((value.name for value in each.output), *(inner.input for inner in each.node))
    set_nodes(graph, nodes[::-1])
    copied = type(graph)(initializer=[each for each in graph.initializer if each.name in read])
    del graph.initializer[:]
    graph.initializer.extend(copied.initializer)


def constant_node(name: str, value: Any) -> Any:
    """A Constant that gives the tensor `name`, of a NumPy array or an `onnx.TensorProto`."""
    tensor = onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
    return onnx.helper.make_node("Constant", [], [name], value=tensor)
