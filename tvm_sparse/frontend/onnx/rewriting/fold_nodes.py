"""Computes what an ONNX model computes of constants, and of its tensors' shapes, which are known once its inputs' are.

Exporters write ``x.view(x.size(0), -1)`` as Shape, Gather, Concat and Reshape, channel shuffles, "same" padding and
interpolations likewise, and ``squeeze`` as a branch on a size. TVM would import such a Reshape as one to an unknown
shape, and nothing behind it could be compiled. Weights come in other forms: cast, masked, standardised.
"""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any

from tvm_sparse.frontend.onnx.graph.known_values import KnownValues
from tvm_sparse.frontend.onnx.graph.nodes import subgraphs_of
from tvm_sparse.frontend.onnx.rewriting.subgraphs import Subgraphs
from tvm_sparse.frontend.optional_imports import onnx


def fold_nodes(where: str, model: Any, kept: Collection[str] = ()) -> bool:
    """Replace nodes of an `onnx.ModelProto` that compute of shapes and constants only, in place, by results.

    Nodes of the operators `kept` stay.

    An If whose condition is known becomes the nodes of its branch, a Loop or Scan of a known length those of its steps.
    What comes of one parameter ``<layer>.weight`` takes its name. Returns whether anything was replaced. ModelError
    where a node cannot be computed, or has too many steps.
    """
    known, subgraphs = KnownValues(model), Subgraphs(where, model)
    left, returned = [], {value.name for value in model.graph.output}
    waiting, is_changed = deque(model.graph.node), False
    while waiting:
        node = waiting.popleft()
        inlined = subgraphs.inlined(node, known.value, known.shape)
        if inlined is not None:
            waiting.extendleft(reversed(inlined))
            is_changed = True
            continue
        known.infer(node)
        if node.op_type not in kept and returned.isdisjoint(node.output) and known.compute(node):
            is_changed = True
        else:
            left.append(node)
    if is_changed:
        _keep(model.graph.node, left)
        _store(model, known)
    return is_changed


def _store(model: Any, known: KnownValues) -> None:
    """Make initializers of those results that are still read, and drop those of the model that no more are."""
    graph = model.graph
    read = {value.name for value in graph.output} | {name for node in graph.node for name in node.input}
    found = [name for name in known.computed if name in read]
    # What subgraphs read is not looked for: they may read everything, under its own name.
    if any(subgraphs_of(node) for node in graph.node):
        found, names = list(known.computed), {}
    else:
        names = _parameter_names(found, known, read)
        # One that is listed as an input too would become an input.
        listed = read | {value.name for value in graph.input}
        _keep(graph.initializer, [each for each in graph.initializer if each.name in listed])
        _keep(graph.node, [each for each in graph.node if each.op_type != "Constant" or each.output[0] in read])
    for name in found:
        graph.initializer.append(onnx.numpy_helper.from_array(known.computed[name], names.get(name, name)))
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)


def _parameter_names(found: Sequence[str], known: KnownValues, read: Collection[str]) -> dict[str, str]:
    """The parameter of which each result is the only form left, by the name of the result."""
    forms = Counter(known.parameters[name] for name in found)
    owners = {name: known.parameters[name] for name in found}
    return {name: owner for name, owner in owners.items() if owner and forms[owner] == 1 and owner not in read}


def _keep(field: Any, kept: Sequence[Any]) -> None:
    """Leave only `kept` in a repeated field of a message."""
    del field[:]
    field.extend(kept)
