"""Run an ONNX model in ONNX Runtime and look at the inputs and outputs of its convolutions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, first_line
from tvm_sparse.frontend.onnx.graph.constants import onnx_tensors
from tvm_sparse.frontend.onnx.model import fix_shapes, load_onnx
from tvm_sparse.frontend.onnx.quantised.operators import is_quantising
from tvm_sparse.frontend.onnx.rewriting.fold_nodes import fold_nodes
from tvm_sparse.frontend.optional_imports import onnx, require
from tvm_sparse.frontend.weights import layer_nodes

# What a convolution of ours takes in with its weight and bias, besides a residual and a ReLU.
_AFFINE = ("BatchNormalization", "Add", "Sub", "Mul", "Div")


@dataclass(frozen=True)
class Names:
    """Names of the tensors of one layer in the ONNX graph; `residual` is empty where there is none."""

    data: str
    residual: str
    result: str


@dataclass(frozen=True)
class Trace:
    """What ONNX Runtime computed: the model's outputs, and (data, residual or None, result) by layer."""

    outputs: list[np.ndarray]
    layers: dict[str, tuple[np.ndarray, np.ndarray | None, np.ndarray]]


class OnnxRuntime:
    """An ONNX file in ONNX Runtime on the CPU, with every tensor that belongs to one of `layers` among its outputs.

    UsageError where the package onnxruntime is not installed. BuildError where it cannot run the model.
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, Sequence[int]],
        layers: Mapping[str, ConvSpec],
        batch: int | None = None,
    ):
        runtime = require("onnxruntime", "test")
        # As the layers' weights are found.
        model = load_onnx(path)
        fold_nodes(str(path), model)
        fix_shapes(str(path), model, shapes, batch)
        for value in model.graph.output if batch is not None else ():
            # They may be those of another batch.
            value.type.tensor_type.ClearField("shape")
        self.outputs = [value.name for value in model.graph.output]
        # Layers on integers have no counterparts: what is between them is scaled otherwise.
        self.names = {} if any(map(is_quantising, model.graph.node)) else find_names(model, layers)
        inner = {name for each in self.names.values() for name in (each.data, each.residual, each.result) if name}
        given = {value.name for value in model.graph.input}
        self.inner = sorted(inner - set(self.outputs) - given)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.inner)
        try:
            self.session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        # ONNX Runtime's errors share no class but this.
        except Exception as error:
            hint = "uninstall onnxruntime to check without it"
            raise BuildError(str(path), f"ONNX Runtime cannot run it ({first_line(error)})", hint=hint) from error
        self.inputs = [value.name for value in self.session.get_inputs()]

    def run(self, inputs: Sequence[np.ndarray]) -> Trace:
        """Run the model once."""
        fed = dict(zip(self.inputs, inputs, strict=True))
        wanted = [*self.outputs, *self.inner]
        tensors = {**fed, **dict(zip(wanted, self.session.run(wanted, fed), strict=True))}
        layers = {
            layer: (tensors[names.data], tensors[names.residual] if names.residual else None, tensors[names.result])
            for layer, names in self.names.items()
        }
        return Trace([tensors[name] for name in self.outputs], layers)


def find_names(model: Any, layers: Mapping[str, ConvSpec]) -> dict[str, Names]:
    """Where in the graph of an `onnx.ModelProto` each of our layers, by name, begins and ends.

    A layer without a counterpart, such as one whose weight the graph computes, is left out.
    """
    tensors = onnx_tensors(model)
    constants = {*tensors, *(node.output[0] for node in model.graph.node if node.op_type == "Constant")}
    numbers = {name for name, tensor in tensors.items() if math.prod(tensor.dims) == 1}
    makers = {output: node for node in model.graph.node for output in node.output}
    users: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    returned = {value.name for value in model.graph.output}
    found = {}
    for layer, node in layer_nodes(model).items():
        spec = layers.get(layer)
        names = _walk(node, spec, users, constants, returned) if spec is not None and _is_ours(node, spec) else None
        if names is not None:
            found[layer] = replace(names, data=_begin(names.data, node, makers, numbers))
    return found


def _begin(data: str, node: Any, makers: Mapping[str, Any], numbers: set[str]) -> str:
    """Where our layer begins: a convolution takes in padding of its own, a linear layer a scaling by one number."""
    maker = makers.get(data)
    if maker is None:
        return data
    if node.op_type == "Conv":
        return str(maker.input[0]) if maker.op_type == "Pad" else data
    others = [name for name in maker.input if name not in numbers]
    return others[0] if maker.op_type == "Mul" and len(others) == 1 else data


def _is_ours(node: Any, spec: ConvSpec) -> bool:
    """Whether a node begins where our layer does, and adds no more to it than our layer's bias."""
    if node.op_type != "Gemm":
        return True
    is_transposed = any(each.name == "transA" and each.i for each in node.attribute)
    return not is_transposed and (spec.bias or len(node.input) < 3)


def _walk(
    node: Any, spec: ConvSpec, users: Mapping[str, list[Any]], constants: set[str], returned: set[str]
) -> Names | None:
    """Follow a Conv node to where a convolution with the epilogue of `spec` ends; None where it ends otherwise."""
    data, result, residual = node.input[0], node.output[0], ""
    wants_residual, wants_relu = spec.residual, spec.relu
    while result not in returned and len(users.get(result, ())) == 1:
        (step,) = users[result]
        others = [name for name in step.input if name != result]
        if step.op_type in _AFFINE and not residual and all(name in constants for name in others):
            pass
        elif step.op_type == "HardSigmoid" and not residual:
            # TVM imports it as three operators, the first two of which our layer takes in.
            return None
        elif step.op_type == "Add" and wants_residual and len(others) == 1:
            residual, wants_residual = others[0], False
        elif step.op_type == ("Clip" if spec.is_clipped else "Relu") and wants_relu and not wants_residual:
            return Names(data, residual, step.output[0])
        else:
            break
        result = step.output[0]
    return None if wants_residual or wants_relu else Names(data, residual, result)
