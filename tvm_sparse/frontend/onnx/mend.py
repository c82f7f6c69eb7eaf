"""Mends what ONNX files in use have against ONNX's rules, where it is known what they mean: ONNX Runtime reads them.

Sizes of -1 or 0 stand for open ones (Paddle2ONNX); outputs have no shape (onnx-graphsurgeon); indices of sparse tensors
are as short as they can be (ONNX Runtime's sparsify_initializers.py); weights of old files may or may not be inputs.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, array_of
from tvm_sparse.frontend.onnx.graph.nodes import every_graph, subgraphs_of
from tvm_sparse.frontend.optional_imports import onnx

# The first version in which constants need not be inputs; it has all that the versions before it have.
_IR_VERSION = 4
# Nodes of a model whose functions are written out.
MOST_NODES = 100_000


def mend(where: str, model: Any) -> None:
    """Mend an `onnx.ModelProto` in place; ModelError where it does not say one version of its operators."""
    model.ir_version = max(model.ir_version, _IR_VERSION)
    _mend_versions(where, model)
    _mend_inputs(model.graph)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
            if dim.HasField("dim_value") and dim.dim_value <= 0:
                dim.ClearField("value")
    for graph in every_graph(model.graph):
        _mend_sparse(graph.sparse_initializer)
        for node in graph.node:
            _mend_sparse([each.sparse_tensor for each in node.attribute if each.HasField("sparse_tensor")])


def _mend_versions(where: str, model: Any) -> None:
    """Leave one version of the standard operators, which have two names for their domain."""
    versions = [each.version for each in model.opset_import if each.domain in ONNX_DOMAINS]
    if len(set(versions)) > 1:
        found = ", ".join(map(str, versions))
        raise ModelError(where, "it has several versions of its operators", found, "one", "export it again")
    others = [each for each in model.opset_import if each.domain not in ONNX_DOMAINS]
    del model.opset_import[:]
    # The first files have no version, which is the first.
    model.opset_import.add(domain="", version=versions[0] if versions else 1)
    model.opset_import.extend(others)


def _mend_inputs(graph: Any) -> None:
    """Take constants out of the inputs: they would be inputs that nobody gives once nothing reads the constants."""
    constants = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    copied = type(graph)(input=[each for each in graph.input if each.name not in constants])
    del graph.input[:]
    graph.input.extend(copied.input)


def _mend_sparse(tensors: Sequence[Any]) -> None:
    """Write the indices of sparse tensors as int64."""
    kinds = onnx.TensorProto
    for sparse in tensors:
        if sparse.indices.data_type in (kinds.INT8, kinds.INT16, kinds.INT32):
            indices = array_of(sparse.indices).astype(np.int64)
            sparse.indices.CopyFrom(onnx.numpy_helper.from_array(indices, sparse.indices.name))


@contextmanager
def shapes_filled(model: Any) -> Iterator[None]:
    """While ONNX's checker looks, which asks for shapes of inputs and outputs, give one to those that have none."""
    kinds = [each.type.tensor_type for each in (*model.graph.input, *model.graph.output) if _is_tensor(each)]
    bare = [kind for kind in kinds if not kind.HasField("shape")]
    for kind in bare:
        kind.shape.SetInParent()
    try:
        yield
    finally:
        for kind in bare:
            kind.ClearField("shape")


def _is_tensor(value: Any) -> bool:
    return bool(value.type.HasField("tensor_type"))


def require_few_nodes(where: str, model: Any) -> None:
    """Raise ModelError where the functions of an `onnx.ModelProto`, which call each other, write out to too many nodes.

    The checker has found that none calls itself.
    """
    bodies = {(each.domain, each.name): each.node for each in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Sequence[Any]) -> int:
        total = 0
        for node in nodes:
            name = (node.domain, node.op_type)
            if name in bodies and name not in sizes:
                sizes[name] = size(bodies[name])
            total += sizes.get(name, 1) + sum(size(each.node) for each in subgraphs_of(node))
        return total

    found = size(model.graph.node)
    if found > MOST_NODES:
        raise ModelError(where, "its functions have too many nodes", found, f"up to {MOST_NODES}", "export it again")


def refuse_shadows(where: str, graph: Any, outer: Collection[str] = ()) -> None:
    """Raise ModelError where a subgraph has a constant or input of a name from outside, which ONNX does not allow.

    Which of the two is meant is open: ONNX Runtime takes the outer one.
    """
    values = (*graph.input, *graph.initializer, *(each.values for each in graph.sparse_initializer))
    seen = {*outer, *(each.name for each in values), *(name for node in graph.node for name in node.output)}
    for node in graph.node:
        for each in subgraphs_of(node):
            taken = sorted(seen & {value.name for value in (*each.input, *each.initializer)})
            if taken:
                name, problem = f"{where}, node {node.name}", "its subgraph has a tensor of a name that is taken"
                raise ModelError(name, problem, taken[0], "names of its own", "export it again")
            refuse_shadows(where, each, seen)
