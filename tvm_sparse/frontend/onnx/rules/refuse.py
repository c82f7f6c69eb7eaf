"""Refuses ONNX models that were exported in training mode, by the name of the node."""

from collections.abc import Iterator
from typing import Any

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, Constants


def refuse_training(where: str, model: Any) -> None:
    """Raise ModelError where a node of an `onnx.ModelProto` does what it does in training only."""
    constants = Constants(model)
    for node in model.graph.node:
        if node.domain in ONNX_DOMAINS and any(_training(node, constants)):
            name, hint = f"{where}, node {node.name or node.output[0]}", "call model.eval() before the export"
            raise ModelError(name, "it was exported in training mode", node.op_type, hint=hint)


def _training(node: Any, constants: Constants) -> Iterator[bool]:
    """Whether a node is in training mode, for each way in which it can say so."""
    yield from (bool(each.i) for each in node.attribute if each.name == "training_mode")
    # The third input of Dropout says so since version 12; one that is no constant is not ours to know.
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in constants.tensors:
        yield bool(constants.array(node.input[2]).any())


def refuse_loops(where: str, model: Any) -> None:
    """Raise ModelError where an `onnx.ModelProto` still has a loop, whose number of steps is not known then."""
    for node in model.graph.node:
        if node.op_type in ("Loop", "Scan") and node.domain in ONNX_DOMAINS:
            name, hint = f"{where}, node {node.name or node.output[0]}", "export the model without it"
            problem = "how often it runs is known at run time only"
            raise ModelError(name, problem, node.op_type, "a loop of constant length", hint)
