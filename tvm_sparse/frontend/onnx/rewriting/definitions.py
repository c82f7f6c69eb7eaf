"""Replaces nodes by what ONNX defines them as, where TVM reads these operators wrongly or not at all.

Those definitions are functions of other operators, most of them the specification's own.
"""

from typing import Any

from tvm_sparse.frontend.onnx.graph.constants import constants_as_tensors, opset_of
from tvm_sparse.frontend.onnx.graph.nodes import set_nodes
from tvm_sparse.frontend.onnx.model import check_shapes
from tvm_sparse.frontend.onnx.rewriting.fold_nodes import fold_nodes
from tvm_sparse.frontend.onnx.rewriting.own_definitions import DOMAIN, own_definition
from tvm_sparse.frontend.onnx.rules.operators import Unknown, unknown_nodes
from tvm_sparse.frontend.onnx.rules.traits import typed_graph, types_of
from tvm_sparse.frontend.optional_imports import onnx


def define_unknown(where: str, model: Any) -> bool:
    """Replace nodes that `require_known` would refuse by their definitions, in place; whether one of them had one."""
    is_changed = False
    while _expand(model, {tuple(each.node.output): each for each in unknown_nodes(model)}):
        # Definitions compute with the shapes of their inputs.
        constants_as_tensors(where, model)
        check_shapes(where, model)
        fold_nodes(where, model)
        check_shapes(where, model)
        is_changed = True
    return is_changed


def _expand(model: Any, unknown: dict[tuple[str, ...], Unknown]) -> bool:
    """Replace nodes of `model`, which are given by their outputs; whether one of them has a definition."""
    if not unknown:
        return False
    types = types_of(typed_graph(model))
    nodes: list[Any] = []
    for node in model.graph.node:
        found = unknown.get(tuple(node.output))
        nodes += [node] if found is None else _definition(found, model, types)
    is_changed = [each.op_type for each in nodes] != [each.op_type for each in model.graph.node]
    set_nodes(model.graph, nodes)
    return is_changed


def _definition(unknown: Unknown, model: Any, types: dict[str, Any]) -> list[Any]:
    """The nodes that a node stands for, itself where nobody says."""
    node = unknown.node
    inputs = dict.fromkeys(filter(None, node.input))
    if not inputs or any(name not in types for name in inputs):
        return [node]
    alone = type(model)(ir_version=model.ir_version, opset_import=model.opset_import)
    alone.graph.name = "definition"
    alone.graph.node.append(node)
    alone.graph.input.extend(onnx.ValueInfoProto(name=name, type=types[name]) for name in inputs)
    alone.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    kind = types[next(iter(inputs))].tensor_type.elem_type
    own = own_definition(node.op_type, unknown.key, unknown.value, kind, opset_of(model))
    if own is None and "" in node.input:
        # ONNX's inliner fails where an input before a given one is left out.
        return [node]
    if own is not None:
        alone.functions.append(own)
        alone.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
        _give_defaults(alone.graph.node[0], opset_of(model))
        alone.graph.node[0].domain = DOMAIN
    domain = alone.graph.node[0].domain
    nodes = onnx.inliner.inline_selected_functions(alone, [(domain, node.op_type)], False, own is None).graph.node
    if [each.op_type for each in nodes] == [node.op_type]:
        return [node]
    # Loops are none that TVM knows.
    has_graphs = any(attribute.HasField("g") for each in nodes for attribute in each.attribute)
    return [node] if has_graphs else _renamed(nodes, node)


def _give_defaults(node: Any, opset: int) -> None:
    """Write the attributes of `node` that it leaves at their defaults: the inliner knows no defaults of functions."""
    given = {each.name for each in node.attribute}
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    defaults = {name: each.default_value for name, each in schema.attributes.items() if name not in given}
    node.attribute.extend(each for each in defaults.values() if each.type)


def _renamed(nodes: Any, original: Any) -> list[Any]:
    """`nodes` with names of their own: others of the same definition have the same."""
    outer = {*original.input, *original.output}
    for index, each in enumerate(nodes):
        each.name = f"{original.name or original.output[0]}.{index}"
        for names in (each.input, each.output):
            names[:] = [f"{original.output[0]}.{name}" if name and name not in outer else name for name in names]
    return list(nodes)
