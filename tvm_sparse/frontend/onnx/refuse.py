"""Refuses ONNX models that are quantised or were exported in training mode, by the name of the node."""

from collections.abc import Iterator
from typing import Any

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.constants import ONNX_DOMAINS, QUANTISING, Constants

# Layers on integers, those of ONNX Runtime's own among them.
# fmt: off
_QUANTISED = {
    "ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits",
    "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
}
# fmt: on
_LAYERS = ("Conv", "Gemm", "MatMul")
_HINT = "export the model before it is quantised"


def refuse_quantised(where: str, model: Any) -> None:
    """Raise ModelError where a layer of an `onnx.ModelProto` computes on integers, or its weight is rounded to them."""
    constants = Constants(model)
    for node in model.graph.node:
        name = f"{where}, node {node.name or node.output[0]}"
        if node.op_type in _QUANTISED:
            raise ModelError(name, "the layer is quantised", node.op_type, f"{', '.join(_LAYERS)} on float32", _HINT)
        if node.op_type not in _LAYERS or node.domain not in ONNX_DOMAINS:
            continue
        parameter = constants.parameters.get(node.input[1])
        steps = constants.steps(node.input[1]) if parameter is not None else []
        found = next((step for step in steps if step.op_type in QUANTISING), None)
        if found is not None:
            text = f"{found.op_type} {found.name or found.output[0]} of {parameter}"
            raise ModelError(name, "its weight is quantised", text, "a float32 constant", _HINT)


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
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in constants.parameters:
        yield bool(constants.array(node.input[2]))
