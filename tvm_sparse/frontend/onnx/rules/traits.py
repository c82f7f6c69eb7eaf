"""What each node of an ONNX graph asks for, as pairs of a key and a value.

======================  ==============================================================================
key                     value
======================  ==============================================================================
``version``             since which operator set the operator is as the model means it
an attribute            its value, or its default; a tuple for a list, an element type for a tensor
a type parameter        an element type, such as ``T``: ``float32``, or ``sequence`` for what is no tensor;
                        of parameters that stand for one type only there is none
``input_`` and a name   ``constant`` or ``computed``, of each input that must be given
``optional_`` and ...   the same, of each other input that is given
``output_`` and a name  ``read``, of each output behind the first that something reads
``rank``                how many axes the first input has
======================  ==============================================================================

Names are those of ONNX's specification.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, opset_of
from tvm_sparse.frontend.optional_imports import onnx

Trait = tuple[str, Any]
# Elements of the largest constant on whose value the shape of another tensor may depend.
_MAX_ELEMENTS = 4096


def nodes_with_traits(model: Any) -> Iterator[tuple[Any, list[Trait] | None]]:
    """Each node of an `onnx.ModelProto`, of its inner graphs too; None for the traits of an unknown operator."""
    constants = {tensor.name for tensor in model.graph.initializer}
    yield from _nodes(typed_graph(model), opset_of(model), {}, constants)


def typed_graph(model: Any) -> Any:
    """The graph of `model` with the types of all tensors; large constants are inputs of it, as nothing reads them."""
    light = type(model)(ir_version=model.ir_version, opset_import=model.opset_import)
    names = {tensor.name for tensor in model.graph.initializer}
    light.graph.name = "graph"
    light.graph.node.extend(model.graph.node)
    light.graph.output.extend(model.graph.output)
    light.graph.input.extend(value for value in model.graph.input if value.name not in names)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _MAX_ELEMENTS:
            light.graph.initializer.append(tensor)
        else:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return onnx.shape_inference.infer_shapes(light, data_prop=True).graph


def _nodes(graph: Any, opset: int, outer: dict[str, Any], constants: set[str]) -> Iterator[tuple[Any, Any]]:
    """`nodes_with_traits` of a graph within another, whose tensors have the types `outer`."""
    types = outer | types_of(graph)
    constants = constants | {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for node in graph.node:
        schema = _schema(node, opset)
        yield node, None if schema is None else list(dict.fromkeys(_traits(node, schema, types, constants, read)))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g, opset, types, constants)


def types_of(graph: Any) -> dict[str, Any]:
    """Name -> `onnx.TypeProto` of the tensors of a typed graph."""
    types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    constants = {each.name: onnx.helper.make_tensor_type_proto(each.data_type, each.dims) for each in graph.initializer}
    return types | constants


def _schema(node: Any, opset: int) -> Any:
    """The operator of `node` in ONNX's specification, None where it is not in it."""
    is_known = node.domain in ONNX_DOMAINS and onnx.defs.has(node.op_type, opset, "")
    return onnx.defs.get_schema(node.op_type, opset, "") if is_known else None


def _traits(node: Any, schema: Any, types: dict[str, Any], constants: set[str], read: set[str]) -> Iterator[Trait]:
    yield "version", schema.since_version
    yield from _attributes(node, schema)
    inputs = [(each, name) for each, name in _named(schema.inputs, node.input) if name]
    outputs = [(each, name) for each, name in _named(schema.outputs, node.output) if name]
    open_types = {each.type_param_str for each in schema.type_constraints if len(each.allowed_type_strs) > 1}
    for parameter, name in dict.fromkeys((formal.type_str, name) for formal, name in (*inputs, *outputs)):
        if parameter in open_types and name in types:
            yield parameter, _element(types[name])
    for formal, name in inputs:
        prefix = "optional" if formal.option == schema.FormalParameterOption.Optional else "input"
        yield f"{prefix}_{formal.name}", "constant" if name in constants else "computed"
    for formal, name in outputs[1:]:
        if formal is not outputs[0][0] and name in read:
            yield f"output_{formal.name}", "read"
    kind = types.get(node.input[0]) if node.input else None
    if kind is not None and kind.tensor_type.HasField("shape"):
        yield "rank", len(kind.tensor_type.shape.dim)


def _attributes(node: Any, schema: Any) -> Iterator[Trait]:
    given = {each.name: each for each in node.attribute}
    for name, formal in schema.attributes.items():
        attribute = given.get(name, formal.default_value)
        # Without a type it has no default either.
        if attribute.type and not attribute.HasField("g"):
            yield name, _value(onnx.helper.get_attribute_value(attribute))


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, Sequence):
        return tuple(map(_value, value))
    return _dtype(value.data_type) if hasattr(value, "data_type") else type(value).__name__


def _named(formals: Any, names: Any) -> Iterator[tuple[Any, str]]:
    """Inputs or outputs of an operator, with the tensors of a node; the last one may stand for several."""
    for index, name in enumerate(names):
        if formals:
            yield formals[min(index, len(formals) - 1)], name


def _element(kind: Any) -> str:
    is_tensor = kind.HasField("tensor_type")
    return _dtype(kind.tensor_type.elem_type) if is_tensor else kind.WhichOneof("value").removesuffix("_type")


def _dtype(element_type: int) -> str:
    """NumPy's name of an element type, in ONNX's words where it has none, such as ``string``."""
    kinds = onnx.TensorProto.DataType
    if element_type in (kinds.UNDEFINED, kinds.STRING):
        return str(kinds.Name(element_type).lower())
    return str(onnx.helper.tensor_dtype_to_np_dtype(element_type))
