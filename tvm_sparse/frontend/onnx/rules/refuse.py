"""Refuses ONNX models that are quantised or were exported in training mode, by the name of the node."""

from collections.abc import Iterator
from typing import Any

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS, Constants, onnx_tensors

# Layers on integers, those of ONNX Runtime's own among them.
# fmt: off
_QUANTISED = {
    "ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits",
    "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
}
# fmt: on
_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
# Operators that give a weight another form; Mul applies a mask that pruning left.
_FORMS = {"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Mul", *_QUANTISING}
_LAYERS = ("Conv", "Gemm", "MatMul")
_HINT = "export the model before it is quantised"


def refuse_quantised(where: str, model: Any) -> None:
    """Raise ModelError where a layer of an `onnx.ModelProto` computes on integers, or its weight is rounded to them."""
    # Name of a tensor -> the constant that it is a form of, and the quantising node that it comes through.
    forms: dict[str, tuple[str, Any]] = {name: (name, None) for name in onnx_tensors(model)}
    for node in model.graph.node:
        name = f"{where}, node {node.name or node.output[0]}"
        if node.op_type in _QUANTISED:
            raise ModelError(name, "the layer is quantised", node.op_type, f"{', '.join(_LAYERS)} on float32", _HINT)
        if node.domain not in ONNX_DOMAINS:
            continue
        inputs = [each for each in node.input if each]
        if node.op_type in _FORMS and inputs and all(each in forms for each in inputs):
            own = node if node.op_type in _QUANTISING else None
            parameter, found = next((forms[each] for each in inputs if each.endswith(".weight")), forms[inputs[0]])
            forms[node.output[0]] = parameter, found or own
        parameter, found = forms.get(node.input[1], ("", None)) if node.op_type in _LAYERS else ("", None)
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
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in constants.tensors:
        yield bool(constants.array(node.input[2]).any())


def refuse_loops(where: str, model: Any) -> None:
    """Raise ModelError where an `onnx.ModelProto` still has a loop, whose number of steps is not known then."""
    for node in model.graph.node:
        if node.op_type in ("Loop", "Scan") and node.domain in ONNX_DOMAINS:
            name, hint = f"{where}, node {node.name or node.output[0]}", "export the model without it"
            problem = "how often it runs is known at run time only"
            raise ModelError(name, problem, node.op_type, "a loop of constant length", hint)
